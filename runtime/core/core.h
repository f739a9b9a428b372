// The core's data, before any of its code. Everything else in this folder moves these.
//
// A request's life: waiting → prefill → decode → finished. A *step* runs one StepBatch: T token rows of B sequences,
// prefill chunks and decode tokens mixed.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
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
  int32_t n = 1;                                // outputs
  std::optional<int32_t> best_of;  // sequences, of which those n of the highest cumulative logprob are the outputs
  bool stream = true;              // false: one output, when finished

  int32_t num_sequences() const { return best_of.value_or(n); }
  bool ranks_sequences() const { return num_sequences() > n; }
};

// What was asked for, after the checks. `params.seed` is set.
struct Request {
  RequestId id = 0;
  std::vector<TokenId> prompt;  // not empty
  int32_t max_length = 0;       // most tokens of prompt and output together, at least the prompt's
  SamplingParams params;
  Clock::time_point enqueued;
};

// ---- a sequence -----------------------------------------------------------------------------------------------------

// The KV pages of one sequence. Page j holds positions 32j … 32j + 31. Changed by KvCache alone.
struct BlockTable {
  std::vector<PageId> pages;
  int32_t reserved = 0;  // pages promised to this sequence and not taken yet
};

enum class SequenceState : uint8_t { waiting, prefill, decode, finished };

// A sequence in the scheduler. Invariants (check_sequence):
//   waiting, finished: no pages, none reserved
//   prefill: num_computed < num_prompt = tokens.size()
//   decode:  num_computed = tokens.size() − 1 ≥ num_prompt: the last token was sampled and has not been run
//   prefill, decode: the table covers positions 0 … num_computed − 1, and its pages with the reserved ones suffice for
//   max_length − 1 positions (the last token of all is never run)
struct Sequence {
  RequestId id = 0;
  std::vector<TokenId> tokens;  // prompt, then output
  int32_t num_prompt = 0;
  int32_t max_length = 0;
  int32_t num_computed = 0;  // positions whose K/V lie in pages
  SequenceState state = SequenceState::waiting;
  BlockTable table;

  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
};

// ---- a step ---------------------------------------------------------------------------------------------------------

// One sequence's share of a step. Invariants: num_rows ≥ 1; rows are contiguous; its block table covers
// positions 0 … first_position + num_rows − 1.
struct StepSequence {
  int32_t first_row;       // its first row in the packed batch
  int32_t num_rows;        // tokens of this step
  int32_t first_position;  // absolute position of its first token of this step
  int32_t block_table;     // where its block table starts in StepBatch::block_tables
};

// One packed step. Rows of a sequence are in rising position; sequences follow each other without gaps.
struct StepBatch {
  std::vector<TokenId> tokens;          // [T], each 0 … vocab_size − 1
  std::vector<StepSequence> sequences;  // [B]
  std::vector<PageId> block_tables;     // page j of a sequence holds its positions 32j … 32j + 31
  std::vector<int32_t> logit_rows;      // [S] rows whose logits are wanted, rising

  void clear() {
    tokens.clear();
    sequences.clear();
    block_tables.clear();
    logit_rows.clear();
  }
};

// What an engine was built for.
struct ModelLimits {
  int32_t vocab_size = 0;
  int32_t max_batch_size = 0;  // sequences of a step
  int32_t max_num_tokens = 0;  // rows of a step
  int32_t max_seq_len = 0;     // prompt and output of a sequence together
  int32_t page_tokens = 32;
  int64_t page_bytes = 0;  // KV bytes of one page over all layers and heads
};

// ---- what comes out -------------------------------------------------------------------------------------------------

enum class FinishReason : uint8_t {
  none,       // not finished
  stop,       // a stop token or a stop string
  length,     // max_tokens, or no room left
  cancelled,  // by the caller, or by a shutdown
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

// What one step adds to one request's output. Concatenated over a request: its whole output.
struct OutputDelta {
  RequestId id = 0;
  std::vector<TokenId> token_ids;
  std::string text;                     // valid UTF-8
  std::vector<TokenLogprobs> logprobs;  // one for each of token_ids when asked for, else empty
  FinishReason finish_reason = FinishReason::none;
  std::string error;        // one sentence, FinishReason::error only
  std::string stop_string;  // which stop string ended the request, or empty
  TokenId stop_token = -1;  // which stop token ended the request, or −1
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;      // prompt tokens that were not computed again
  int32_t completion_tokens = 0;  // sampled so far: with the stop token, and with what a stop string cut off
  uint64_t seed = 0;
  double queue_seconds = 0;        // from enqueue to admission
  double first_token_seconds = 0;  // from enqueue to the first token; 0: none yet
  double total_seconds = 0;        // from enqueue to this output
};

// Errors that carry one sentence for the user.
struct EngineError : std::runtime_error {  // a file that will not load
  using std::runtime_error::runtime_error;
};
struct RequestError : std::runtime_error {  // refused at enqueue
  using std::runtime_error::runtime_error;
};

// Runs steps. Called by one thread, the loop.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const ModelLimits& limits() const = 0;
  // Allocates the KV pool once, before the first run. Throws std::bad_alloc.
  virtual void allocate_pages(int32_t num_pages) = 0;
  // Appends K/V of every row to its pages and writes logits [S][vocab_size]. A row's logits depend on its sequence
  // alone. Throws std::invalid_argument for a batch that breaks an invariant or a limit (step_check.h).
  virtual void run(const StepBatch& batch, float* logits) = 0;
  // Copies the first num_tokens tokens of a page (copy-on-write).
  virtual void copy_page(PageId from, PageId to, int32_t num_tokens) = 0;
};

}  // namespace precast
