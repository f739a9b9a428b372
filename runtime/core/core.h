// The core's data, before any of its code. Everything else in this folder moves these.
//
// A request's life: queued → running (prefill, then decode) → finished. A *step* runs one StepBatch: T token rows of B
// sequences, prefill chunks and decode tokens mixed.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace precast {

using TokenId = int32_t;
using PageId = int32_t;

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

// Errors that carry one sentence for the user.
struct EngineError : std::runtime_error {
  using std::runtime_error::runtime_error;
};  // a file that will not load
struct RequestError : std::runtime_error {
  using std::runtime_error::runtime_error;
};  // refused at enqueue

// Runs steps. Owned and called by one thread, the loop.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const ModelLimits& limits() const = 0;
  // Allocates the KV pool once, before the first run. Throws std::bad_alloc.
  virtual void allocate_pages(int32_t num_pages) = 0;
  // Appends K/V of every row to its pages and writes logits [S][vocab_size]. A row's logits depend on its sequence
  // alone.
  virtual void run(const StepBatch& batch, float* logits) = 0;
  // Copies the first num_tokens tokens of a page (copy-on-write).
  virtual void copy_page(PageId from, PageId to, int32_t num_tokens) = 0;
};

}  // namespace precast
