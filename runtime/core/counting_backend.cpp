#include "runtime/core/counting_backend.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <stdexcept>
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

void CountingBackend::allocate_pages(const std::vector<int32_t>& num_pages) {
  num_pages_ = num_pages;
  entries_.clear();
  for (const int32_t pages : num_pages) {
    entries_.emplace_back(static_cast<size_t>(pages) * static_cast<size_t>(config_.limits.page_tokens));
  }
}

void CountingBackend::load_pages(const std::vector<PageLoad>& loads) {
  for (const PageLoad& load : loads) {
    const std::span<const uint8_t> there = page(load.group, load.page);
    if (load.bytes.size() != there.size()) throw std::invalid_argument("a page to load has another size");
    std::memcpy(const_cast<uint8_t*>(there.data()), load.bytes.data(), there.size());
  }
}

std::span<const uint8_t> CountingBackend::page(int32_t group, PageId page) const {
  const auto g = static_cast<size_t>(group);
  if (group < 0 || g >= num_pages_.size() || page < 0 || page >= num_pages_[g]) {
    throw std::invalid_argument("a page lies outside the pools");
  }
  const auto tokens = static_cast<size_t>(config_.limits.page_tokens);
  const Entry* entries = entries_[g].data() + static_cast<size_t>(page) * tokens;
  return {reinterpret_cast<const uint8_t*>(entries), tokens * sizeof(Entry)};
}

void CountingBackend::run(const StepBatch& batch, float* logits) {
  check_step(batch, config_.limits, num_pages_);
  if (config_.step_seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(config_.step_seconds));
  if (step_++ == config_.fail_at_step) throw std::runtime_error("the counting backend was told to fail");
  for (const PageCopy& each : batch.copies) copy(each);
  const size_t groups = entries_.size();
  for (const StepSequence& s : batch.sequences) {
    for (int32_t i = 0; i < s.num_rows; ++i) {
      const int32_t position = s.first_position + i;
      for (size_t g = 0; g < groups; ++g) {
        entry(batch, g, s, position) = {batch.tokens[static_cast<size_t>(s.first_row + i)], position};
      }
    }
  }
  auto sequence = batch.sequences.begin();
  for (const int32_t row : batch.logit_rows) {
    while (row >= sequence->first_row + sequence->num_rows) ++sequence;
    const int32_t position = sequence->first_position + row - sequence->first_row;
    uint64_t state = 0;
    for (size_t g = 0; g < groups; ++g) state = seen(batch, g, *sequence, position, state);
    write_logits(state, batch.tokens[static_cast<size_t>(row)], logits);
    logits += config_.limits.vocab_size;
  }
}

void CountingBackend::copy(const PageCopy& copy) {
  auto& entries = entries_[static_cast<size_t>(copy.group)];
  const auto page = [&](PageId p) { return entries.begin() + std::ptrdiff_t{p} * config_.limits.page_tokens; };
  if (copy.from != copy.to) std::copy_n(page(copy.from), copy.num_tokens, page(copy.to));
}

CountingBackend::Entry& CountingBackend::entry(const StepBatch& batch, size_t group, const StepSequence& s,
                                               int32_t position) {
  const int32_t page_tokens = config_.limits.page_tokens;
  const PageId page = batch.block_tables[group][static_cast<size_t>(s.block_table + position / page_tokens)];
  return entries_[group][static_cast<size_t>(page) * static_cast<size_t>(page_tokens) +
                         static_cast<size_t>(position % page_tokens)];
}

// `state` after the tokens that the row at `position` finds.
uint64_t CountingBackend::seen(const StepBatch& batch, size_t group, const StepSequence& s, int32_t position,
                               uint64_t state) {
  const int32_t window = config_.limits.groups[group].window, range = config_.range;
  const TokenId own = entry(batch, group, s, position).token;
  for (int32_t p = window == 0 ? 0 : std::max(0, position - window + 1); p <= position; ++p) {
    const Entry& found = entry(batch, group, s, p);
    require(found.position == p, "a sequence finds its own positions in its pages");
    require(range == 0 || found.token / range == own / range, "a sequence finds tokens of its own range");
    state = mix(state ^ static_cast<uint64_t>(found.token));
  }
  return state;
}

void CountingBackend::write_logits(uint64_t state, TokenId last, float* logits) const {
  const auto levels = static_cast<uint64_t>(config_.levels);
  for (int32_t id = 0; id < config_.limits.vocab_size; ++id) {
    // 0 … 16: peaked enough that top-p and min-p cut somewhere.
    const uint64_t level = mix(state + static_cast<uint64_t>(id)) % levels;
    const double logit = static_cast<double>(level) * 16.0 / static_cast<double>(config_.levels);
    const bool outside = config_.range > 0 && id / config_.range != last / config_.range;
    logits[id] = static_cast<float>(outside ? logit - 200 : logit);
  }
  if (last == config_.poison_token) logits[0] = std::numeric_limits<float>::quiet_NaN();
}

}  // namespace precast
