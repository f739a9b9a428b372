#include "runtime/core/counting_backend.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "runtime/core/check.h"
#include "runtime/core/step_check.h"

namespace precast {
namespace {

// The finalizer of SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", 2014).
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

void CountingBackend::allocate_pages(int32_t num_pages) {
  num_pages_ = num_pages;
  entries_.assign(static_cast<size_t>(num_pages) * static_cast<size_t>(config_.limits.page_tokens), Entry{});
}

void CountingBackend::run(const StepBatch& batch, float* logits) {
  check_step(batch, config_.limits, num_pages_);
  if (config_.step_seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(config_.step_seconds));
  if (step_++ == config_.fail_at_step) throw std::runtime_error("the counting backend was told to fail");
  for (const StepSequence& s : batch.sequences) {
    for (int32_t i = 0; i < s.num_rows; ++i) {
      const int32_t position = s.first_position + i;
      entry(batch, s, position) = {batch.tokens[static_cast<size_t>(s.first_row + i)], position};
    }
  }
  auto sequence = batch.sequences.begin();
  for (const int32_t row : batch.logit_rows) {
    while (row >= sequence->first_row + sequence->num_rows) ++sequence;
    write_logits(batch, *sequence, sequence->first_position + row - sequence->first_row, logits);
    logits += config_.limits.vocab_size;
  }
}

void CountingBackend::copy_page(PageId from, PageId to, int32_t num_tokens) {
  const auto page = [&](PageId p) { return entries_.begin() + std::ptrdiff_t{p} * config_.limits.page_tokens; };
  std::copy_n(page(from), num_tokens, page(to));
}

CountingBackend::Entry& CountingBackend::entry(const StepBatch& batch, const StepSequence& s, int32_t position) {
  const int32_t page_tokens = config_.limits.page_tokens;
  const PageId page = batch.block_tables[static_cast<size_t>(s.block_table + position / page_tokens)];
  return entries_[static_cast<size_t>(page) * static_cast<size_t>(page_tokens) +
                  static_cast<size_t>(position % page_tokens)];
}

void CountingBackend::write_logits(const StepBatch& batch, const StepSequence& s, int32_t position, float* logits) {
  uint64_t state = 0;
  TokenId last = -1;
  for (int32_t p = 0; p <= position; ++p) {
    const Entry& found = entry(batch, s, p);
    require(found.position == p, "a sequence finds its own positions in its pages");
    last = found.token;
    state = mix(state ^ static_cast<uint64_t>(last));
  }
  const auto levels = static_cast<uint64_t>(config_.levels);
  for (int32_t id = 0; id < config_.limits.vocab_size; ++id) {
    // 0 … 16: peaked enough that top-p and min-p cut somewhere.
    const uint64_t level = mix(state + static_cast<uint64_t>(id)) % levels;
    logits[id] = static_cast<float>(static_cast<double>(level) * 16.0 / static_cast<double>(config_.levels));
  }
  if (last == config_.poison_token) logits[0] = std::numeric_limits<float>::quiet_NaN();
}

}  // namespace precast
