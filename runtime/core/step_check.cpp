#include "runtime/core/step_check.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>

namespace precast {

namespace {

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(std::string("a step has ") + what);
}

// The pages that rows from first_position on see lie in the pool; those before them may be gone.
void check_table(std::span<const PageId> table, const StepSequence& sequence, const KvGroup& group, int32_t page_tokens,
                 int32_t num_pages) {
  const int64_t first = group.window == 0 ? 0 : std::max(0, sequence.first_position - group.window + 1) / page_tokens;
  for (size_t j = static_cast<size_t>(first); j < table.size(); ++j) {
    require(table[j] >= 0 && table[j] < num_pages, "a page outside the pool");
  }
}

void check_sequence(const StepBatch& batch, const StepSequence& sequence, const ModelLimits& limits,
                    const std::vector<int32_t>& num_pages) {
  require(sequence.num_rows >= 1, "a sequence without rows");
  const int64_t end = int64_t{sequence.first_position} + sequence.num_rows;
  require(sequence.first_position >= 0 && end <= limits.max_seq_len, "a position outside 0 … max_seq_len − 1");
  const int64_t pages = (end + limits.page_tokens - 1) / limits.page_tokens;
  for (size_t g = 0; g < limits.groups.size(); ++g) {
    const std::vector<PageId>& tables = batch.block_tables[g];
    require(sequence.block_table >= 0 && sequence.block_table + pages <= static_cast<int64_t>(tables.size()),
            "a block table that is too short");
    check_table(std::span(tables).subspan(static_cast<size_t>(sequence.block_table), static_cast<size_t>(pages)),
                sequence, limits.groups[g], limits.page_tokens, num_pages[g]);
  }
}

void check_copy(const PageCopy& copy, const ModelLimits& limits, const std::vector<int32_t>& num_pages) {
  require(copy.group >= 0 && static_cast<size_t>(copy.group) < num_pages.size(), "a copy in an unknown group");
  const int32_t pages = num_pages[static_cast<size_t>(copy.group)];
  require(copy.from >= 0 && copy.from < pages && copy.to >= 0 && copy.to < pages, "a copy of a page outside the pool");
  require(copy.num_tokens >= 0 && copy.num_tokens <= limits.page_tokens, "a copy of more tokens than a page has");
}

}  // namespace

void check_step(const StepBatch& batch, const ModelLimits& limits, const std::vector<int32_t>& num_pages) {
  require(num_pages.size() == limits.groups.size(), "no page pools");
  require(batch.block_tables.size() == limits.groups.size(), "block tables of another number of groups");
  require(!batch.tokens.empty(), "no tokens");
  require(batch.tokens.size() <= static_cast<size_t>(limits.max_num_tokens), "more than max_num_tokens tokens");
  require(batch.sequences.size() <= static_cast<size_t>(limits.max_batch_size), "more than max_batch_size sequences");
  for (const TokenId token : batch.tokens) {
    require(token >= 0 && token < limits.vocab_size, "a token outside the vocabulary");
  }
  for (const PageCopy& copy : batch.copies) check_copy(copy, limits, num_pages);
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
