#include "runtime/core/step_check.h"

#include <stdexcept>
#include <string>

namespace precast {

namespace {

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(std::string("a step has ") + what);
}

void check_sequence(const StepBatch& batch, const StepSequence& sequence, const ModelLimits& limits,
                    int32_t num_pages) {
  require(sequence.num_rows >= 1, "a sequence without rows");
  const int64_t end = int64_t{sequence.first_position} + sequence.num_rows;
  require(sequence.first_position >= 0 && end <= limits.max_seq_len, "a position outside 0 … max_seq_len − 1");
  const int64_t pages = (end + limits.page_tokens - 1) / limits.page_tokens;
  require(sequence.block_table >= 0 && sequence.block_table + pages <= static_cast<int64_t>(batch.block_tables.size()),
          "a block table that is too short");
  for (int64_t j = 0; j < pages; ++j) {
    const PageId page = batch.block_tables[static_cast<size_t>(sequence.block_table + j)];
    require(page >= 0 && page < num_pages, "a page outside the pool");
  }
}

}  // namespace

void check_step(const StepBatch& batch, const ModelLimits& limits, int32_t num_pages) {
  require(!batch.tokens.empty(), "no tokens");
  require(batch.tokens.size() <= static_cast<size_t>(limits.max_num_tokens), "more than max_num_tokens tokens");
  require(batch.sequences.size() <= static_cast<size_t>(limits.max_batch_size), "more than max_batch_size sequences");
  for (const TokenId token : batch.tokens) {
    require(token >= 0 && token < limits.vocab_size, "a token outside the vocabulary");
  }
  int64_t rows = 0;
  for (const StepSequence& sequence : batch.sequences) {
    require(sequence.first_row == rows, "sequences that do not follow each other");
    check_sequence(batch, sequence, limits, num_pages);
    rows += sequence.num_rows;
  }
  require(rows == static_cast<int64_t>(batch.tokens.size()), "rows that belong to no sequence");
  int32_t last = -1;
  for (const int32_t row : batch.logit_rows) {
    require(row > last && row < rows, "logit rows that do not rise, or lie outside it");
    last = row;
  }
}

}  // namespace precast
