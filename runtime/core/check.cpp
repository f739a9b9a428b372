#include "runtime/core/check.h"

namespace precast {

void check_sequence(const Sequence& s, int32_t page_tokens) {
  const int64_t pages = static_cast<int64_t>(s.table.pages.size());
  require(s.num_prompt >= 1 && s.length() >= s.num_prompt, "a sequence holds its prompt");
  require(s.length() <= s.max_length, "length ≤ max_length");
  if (s.state == SequenceState::waiting || s.state == SequenceState::finished) {
    require(pages == 0 && s.table.reserved == 0, "a sequence that does not run has no pages");
    return;
  }
  if (s.state == SequenceState::prefill) {
    require(s.num_computed < s.num_prompt && s.length() == s.num_prompt, "prefill: the prompt is not computed yet");
  } else {
    require(s.num_computed == s.length() - 1 && s.num_computed >= s.num_prompt, "decode: one token is not computed");
  }
  require(pages * page_tokens >= s.num_computed, "the block table covers what is computed");
  require((pages + s.table.reserved) * page_tokens >= s.max_length - 1, "pages to completion are promised");
}

void check_batch(const StepBatch& batch, const ModelLimits& limits, int32_t num_pages) {
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  require(rows >= 1 && rows <= limits.max_num_tokens, "1 ≤ rows ≤ max_num_tokens");
  require(static_cast<int32_t>(batch.sequences.size()) <= limits.max_batch_size, "sequences ≤ max_batch_size");
  for (TokenId token : batch.tokens) require(token >= 0 && token < limits.vocab_size, "token ids are in range");
  int32_t next_row = 0;
  for (const StepSequence& s : batch.sequences) {
    require(s.first_row == next_row && s.num_rows >= 1, "sequences follow each other without gaps");
    next_row += s.num_rows;
    const int32_t end = s.first_position + s.num_rows;
    require(s.first_position >= 0 && end <= limits.max_seq_len, "positions are in range");
    const int32_t pages = (end + limits.page_tokens - 1) / limits.page_tokens;
    require(s.block_table >= 0 && s.block_table + pages <= static_cast<int32_t>(batch.block_tables.size()),
            "the block table covers the rows");
    for (int32_t j = 0; j < pages; ++j) {
      const PageId page = batch.block_tables[static_cast<size_t>(s.block_table + j)];
      require(page >= 0 && page < num_pages, "pages lie in the pool");
    }
  }
  require(next_row == rows, "every row belongs to a sequence");
  int32_t previous = -1;
  for (int32_t row : batch.logit_rows) {
    require(row > previous && row < rows, "logit rows rise");
    previous = row;
  }
}

}  // namespace precast
