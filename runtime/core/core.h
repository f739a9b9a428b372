// The core's data, before any of its code. Everything else in this folder moves these.
//
// A request's life: waiting → prefill → decode → finished. A *step* runs one StepBatch: T token rows of B sequences,
// prefill chunks and decode tokens mixed.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace precast {

using TokenId = int32_t;
using PageId = int32_t;
using RequestId = uint64_t;
using Clock = std::chrono::steady_clock;

// ---- a request ------------------------------------------------------------------------------------------------------

// How tokens are chosen and when a request ends. Checked by check_request (request.h); docs/sampling.md.
struct SamplingParams {
  std::optional<int32_t> max_tokens;     // 0: nothing is generated; absent: up to max_seq_len or what the pool holds
  int32_t min_tokens = 0;                // neither a stop token nor a stop string ends the request before
  double temperature = 1.0;              // 0 (and anything below 1e-5): greedy
  int32_t top_k = 0;                     // keep the k most likely tokens; 0: all
  double top_p = 1.0;                    // keep the fewest most likely tokens whose probabilities reach top_p; 1: all
  double min_p = 0.0;                    // keep tokens of at least min_p times the highest probability
  double repetition_penalty = 1.0;       // divides (a negative logit: multiplies) what occurs in prompt or output
  double presence_penalty = 0.0;         // is subtracted for what occurs in the output
  double frequency_penalty = 0.0;        // is subtracted for each time that it occurs in the output
  std::map<TokenId, double> logit_bias;  // is added
  std::vector<std::vector<TokenId>> bad_words;  // token sequences that are never completed
  std::optional<uint64_t> seed;                 // absent: a random one, which the output names
  std::vector<std::string> stop;                // texts that end the request and are not part of its text
  std::vector<TokenId> stop_token_ids;          // tokens that end the request and are not part of its output
  bool include_stop_str_in_output = false;      // what ends the request, text or token, is part of its output
  bool ignore_eos = false;                      // the engine's eos tokens do not end the request
  bool skip_special_tokens = true;              // special tokens are not part of the text
  std::optional<int32_t> logprobs;              // log-probability of each token, and of the n most likely ones
  std::optional<int32_t> prompt_logprobs;       // the same of the prompt's tokens, its first excepted
  bool echo = false;                            // the output begins with the prompt
  int32_t n = 1;                                // outputs
  std::optional<int32_t> best_of;  // sequences, of which those n of the highest cumulative logprob are the outputs
  bool stream = true;              // false: one output, when finished

  int32_t num_sequences() const { return best_of.value_or(n); }
  bool ranks_sequences() const { return num_sequences() > n; }
  // Of how many most likely tokens the logprobs of the prompt tell; absent: none are wanted.
  std::optional<int32_t> scored_prompt_tokens() const { return prompt_logprobs || !echo ? prompt_logprobs : logprobs; }
};

// What a request asks of scheduler and cache. No token depends on it.
struct RequestOptions {
  int32_t priority = 0;                   // with RequestOrder::priority: larger ones first
  std::optional<std::string> cache_salt;  // cached prefixes are shared among requests of the same salt only
  int32_t cache_priority = 35;            // 0 … 100: what it leaves in the cache outlives all of lower priority
  std::optional<double> timeout_seconds;  // from enqueue; what is not finished then ends with `timeout`
};

// What was asked for, after the checks. `params.seed` is set.
struct Request {
  RequestId id = 0;
  std::vector<TokenId> prompt;  // not empty
  int32_t max_length = 0;       // most tokens of prompt and output together, at least the prompt's
  SamplingParams params;
  RequestOptions options;
  Clock::time_point enqueued;
};

// ---- a sequence -----------------------------------------------------------------------------------------------------

// The KV pages of one sequence in one layer group. Entry j holds positions page_tokens · j … page_tokens · (j + 1) − 1.
// Changed by KvCache alone.
struct BlockTable {
  std::vector<PageId> pages;  // entries before `first` have left the window, or were never needed: −1; no other is
  int32_t first = 0;
  int32_t reserved = 0;  // pages promised to this sequence and not taken yet

  int32_t num_pages() const { return static_cast<int32_t>(pages.size()); }
  int32_t held() const { return num_pages() - first; }
};

enum class SequenceState : uint8_t { waiting, prefill, decode, finished };

struct RadixNode;   // radix_tree.h
class LiveRequest;  // live_request.h

// A sequence in the scheduler: one of the outputs of a request. Invariants (check_sequence):
//   waiting, finished: no pages, none reserved, num_computed = 0
//   prefill: num_computed < tokens.size(). After a pause, outputs are among the tokens that are computed again
//   decode:  num_computed = tokens.size() − 1 ≥ num_prompt: the last token was sampled and has not been run
//   prefill, decode: each table covers the positions 0 … num_computed − 1 that the next row sees, and its pages with
//   the reserved ones suffice for the positions before promised_length
struct Sequence {
  RequestId id = 0;
  int32_t index = 0;            // which of the request's outputs
  std::vector<TokenId> tokens;  // prompt, then output
  int32_t num_prompt = 0;
  int32_t max_length = 0;
  int32_t priority = 0;  // RequestOptions

  // What it shares with others: pages of the same key and tokens (cache_key.h). Absent: nothing.
  std::optional<std::string> cache_key;
  int32_t cache_priority = 35;  // RequestOptions
  // Wants logits of its prompt's rows (each position p < num_prompt − 1 tells of token p + 1): they are computed, never
  // read from the cache. The positions before num_prompt_logits have had theirs.
  bool prompt_logits = false;
  int32_t num_prompt_logits = 0;

  SequenceState state = SequenceState::waiting;
  int32_t num_computed = 0;        // positions whose K/V lie in pages
  std::vector<BlockTable> tables;  // [group]
  int32_t num_cached = 0;          // prompt tokens that its first admission found computed
  int32_t num_pauses = 0;

  // KvCache's own: the deepest node of the tree whose page is its page num_kept − 1, and positions that it was promised
  // pages for.
  RadixNode* node = nullptr;
  int32_t num_kept = 0;
  int32_t promised_length = 0;
  // Scheduler's own: order of arrival, order of the last admission, and how many later ones were admitted before it.
  uint64_t arrival = 0;
  uint64_t start = 0;
  int32_t num_overtaken = 0;
  // Executor's own: the request that it is a member of.
  LiveRequest* request = nullptr;

  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
};

// ---- a step ---------------------------------------------------------------------------------------------------------

// One sequence's share of a step. Invariants: num_rows ≥ 1; rows are contiguous; in every group its block table covers
// the positions up to first_position + num_rows − 1 that a row of this step sees.
struct StepSequence {
  int32_t first_row;       // its first row in the packed batch
  int32_t num_rows;        // tokens of this step
  int32_t first_position;  // absolute position of its first token of this step
  int32_t block_table;     // where its block table starts in StepBatch::block_tables, the same in every group
};

// Copies the first num_tokens tokens of a page; what lies behind them is overwritten before it is read.
struct PageCopy {
  int32_t group;
  PageId from, to;
  int32_t num_tokens;
};

// What a page that a step has not written holds.
struct PageLoad {
  int32_t group;
  PageId page;
  std::span<const uint8_t> bytes;  // page_bytes of the group
};

// One packed step. Rows of a sequence are in rising position; sequences follow each other without gaps.
struct StepBatch {
  std::vector<TokenId> tokens;                    // [T], each 0 … vocab_size − 1
  std::vector<StepSequence> sequences;            // [B]
  std::vector<std::vector<PageId>> block_tables;  // [group]; −1: a page that has left the window
  std::vector<PageCopy> copies;                   // done in this order, before anything is appended
  std::vector<int32_t> logit_rows;                // [S] rows whose logits are wanted, rising

  void clear(size_t num_groups) {
    tokens.clear();
    sequences.clear();
    block_tables.resize(num_groups);
    for (std::vector<PageId>& tables : block_tables) tables.clear();
    copies.clear();
    logit_rows.clear();
  }
};

// Layers whose K/V pages are handed out together, because their attention sees the same positions.
struct KvGroup {
  int32_t window = 0;      // a row at position p sees positions above p − window; 0: all
  int32_t num_layers = 0;  // of these
  int64_t page_bytes = 0;  // K/V of one page over the group's layers and heads
};

// What an engine was built for.
struct ModelLimits {
  int32_t vocab_size = 0;
  int32_t max_batch_size = 0;  // sequences of a step
  int32_t max_num_tokens = 0;  // rows of a step
  int32_t max_seq_len = 0;     // prompt and output of a sequence together
  int32_t page_tokens = 32;
  std::vector<KvGroup> groups = {KvGroup{}};  // at least one; each window once, full attention first

  // Most rows of a step whose logits are wanted: one of each sequence, and a page of a prompt.
  int32_t max_logit_rows() const { return max_batch_size + page_tokens; }
};

// ---- what comes out -------------------------------------------------------------------------------------------------

enum class FinishReason : uint8_t {
  none,       // not finished
  stop,       // a stop token or a stop string
  length,     // max_tokens, or no room left
  cancelled,  // by the caller, or by a shutdown
  timeout,    // RequestOptions::timeout_seconds
  error,      // this request's own fault, or the engine's: OutputDelta::error says which
};

struct TokenLogprob {
  TokenId token;
  double logprob;  // natural logarithm; of the model's own distribution, before temperature and filters
};

struct TokenLogprobs {
  double logprob = 0;             // of the token itself
  std::vector<TokenLogprob> top;  // the most likely tokens, best first; equal logits: lowest id first
};

// What one step adds to one output of a request. Concatenated over the deltas of an index: that whole output.
struct OutputDelta {
  RequestId id = 0;
  int32_t index = 0;                    // which of the request's outputs
  std::vector<TokenId> token_ids;       // with echo, the first delta's begin with the prompt
  int32_t num_echoed = 0;               // how many of token_ids are the prompt's
  std::string text;                     // valid UTF-8
  std::vector<TokenLogprobs> logprobs;  // one for each of token_ids behind the prompt's when asked for, else empty
  // In the first delta of each output, when asked for: of prompt token 1, 2, …
  std::shared_ptr<const std::vector<TokenLogprobs>> prompt_logprobs;
  double cumulative_logprob = 0;  // of all sampled so far; 0 unless logprobs or best_of ask for it
  FinishReason finish_reason = FinishReason::none;
  std::string error;        // one sentence, FinishReason::error only
  std::string stop_string;  // which stop string ended the request, or empty
  TokenId stop_token = -1;  // which stop token ended the request, or −1
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // prompt tokens that were not computed again
  // Sampled so far, for all outputs together: with the stop tokens, and with what stop strings cut off.
  int32_t completion_tokens = 0;
  bool request_finished = false;  // the request's last delta
  uint64_t seed = 0;
  double queue_seconds = 0;        // from enqueue to admission
  double first_token_seconds = 0;  // from enqueue to the first token; 0: none yet
  double total_seconds = 0;        // from enqueue to this output
  // One for each of token_ids behind the prompt's: seconds from the token before it; the first: from enqueue.
  std::vector<double> token_latencies;
  int32_t num_preemptions = 0;  // how often an output was paused so far, all outputs together
};

// Errors that carry one sentence for the user.
struct EngineError : std::runtime_error {  // a file that will not load
  using std::runtime_error::runtime_error;
};
struct RequestError : std::runtime_error {  // refused at enqueue
  using std::runtime_error::runtime_error;
};
struct QueueFullError : RequestError {  // refused for now: too many wait
  using RequestError::RequestError;
};

// Runs steps. Called by one thread, the loop.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const ModelLimits& limits() const = 0;
  // Allocates the KV pools, num_pages[group] pages each, once, before the first run. Throws std::bad_alloc.
  virtual void allocate_pages(const std::vector<int32_t>& num_pages) = 0;
  // Fills pages, in this order, before the first run. The bytes stay where they are while the backend lives. Throws
  // std::invalid_argument for a page outside the pools, or a number of bytes that is not its size.
  virtual void load_pages(const std::vector<PageLoad>& loads) = 0;
  // What a page holds now, as load_pages takes it. Throws as that does.
  virtual std::span<const uint8_t> page(int32_t group, PageId page) const = 0;
  // Does the copies, appends K/V of every row to its pages, and writes logits [S][vocab_size]. A row's logits depend on
  // its sequence alone. Throws std::invalid_argument for a batch that breaks an invariant or a limit (step_check.h).
  virtual void run(const StepBatch& batch, float* logits) = 0;
  // Calls fn(item, thread) for item 0 … count − 1, in any order, on threads that `run` does not need meanwhile;
  // 0 ≤ thread < num_threads(), and no two calls at a time have the same one. fn must not throw.
  virtual int num_threads() const { return 1; }
  virtual void parallel_for(int count, const std::function<void(int item, int thread)>& fn) {
    for (int item = 0; item < count; ++item) fn(item, 0);
  }
};

}  // namespace precast
