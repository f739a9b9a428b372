#include "runtime/core/vocab_scan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "plugins/cpu/isa.h"

namespace precast {

// 2^n · e^r with |r| ≤ ln 2 / 2: the Taylor polynomial of degree 6 is within 2e-7 there. A shift by 1.5 · 2^23 rounds
// to the nearest integer. The kernels do the same, operation by operation.
float exp_nonpositive(float x) {
  x = x > -87.0f ? x : -87.0f;
  constexpr float kShift = 0x1.8p23f;
  const float n = std::fma(x, 1.44269504f, kShift) - kShift;
  // ln 2 in two parts
  const float r = std::fma(-n, 1.42860677e-6f, std::fma(-n, 0.693145752f, x));
  float p = 1.0f / 720;
  for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = std::fma(p, r, c);
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

uint64_t rank_key(float logit, size_t id) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // −0 and 0 are equal
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return (uint64_t{ordered} << 32) | (0xFFFFFFFFu - static_cast<uint32_t>(id));
}

VocabScan::VocabScan(int32_t vocab_size)
    : kernels_(kernel_table(isa_level())),
      maxima_((static_cast<size_t>(vocab_size) + kVocabBlock - 1) / kVocabBlock),
      dirty_(maxima_.size()),
      sums_(maxima_.size()) {}

std::span<const float> VocabScan::block(size_t index) const {
  const size_t begin = index * kVocabBlock;
  return row_.subspan(begin, std::min<size_t>(kVocabBlock, row_.size() - begin));
}

bool VocabScan::scan(std::span<const float> row) {
  row_ = row;
  const bool finite = kernels_.vocab_maxima(row.data(), static_cast<int>(row.size()), maxima_.data());
  maximum_ = *std::ranges::max_element(maxima_);
  return finite;
}

void VocabScan::refresh() {
  for (size_t i = 0; i < dirty_.size(); ++i) {
    if (dirty_[i] == 0) continue;
    dirty_[i] = 0;
    const std::span<const float> tokens = block(i);
    kernels_.vocab_maxima(tokens.data(), static_cast<int>(tokens.size()), &maxima_[i]);
  }
  maximum_ = *std::ranges::max_element(maxima_);
}

TokenId VocabScan::best() const {
  const auto at = static_cast<size_t>(std::ranges::find(maxima_, maximum_) - maxima_.begin());
  const std::span<const float> tokens = block(at);
  return static_cast<TokenId>(at * kVocabBlock) +
         static_cast<TokenId>(std::ranges::find(tokens, maximum_) - tokens.begin());
}

float VocabScan::reached_by(size_t count) {
  if (count == 0 || count > maxima_.size()) return -std::numeric_limits<float>::infinity();
  scratch_ = maxima_;
  const auto place = scratch_.begin() + static_cast<std::ptrdiff_t>(count) - 1;
  std::nth_element(scratch_.begin(), place, scratch_.end(), std::greater<>());
  return *place;
}

void VocabScan::at_least(float threshold, std::vector<int32_t>& ids) const {
  ids.clear();
  std::array<int32_t, kVocabBlock> found;
  for (size_t i = 0; i < maxima_.size(); ++i) {
    if (maxima_[i] < threshold) continue;
    const std::span<const float> tokens = block(i);
    const int count = kernels_.vocab_at_least(tokens.data(), static_cast<int>(tokens.size()), threshold, found.data());
    for (int j = 0; j < count; ++j) {
      ids.push_back(static_cast<int32_t>(i * kVocabBlock) + found[static_cast<size_t>(j)]);
    }
  }
}

void VocabScan::weigh(std::span<const float> logits, float inverse_temperature, std::span<uint64_t> weights) const {
  kernels_.vocab_weights(logits.data(), static_cast<int>(logits.size()), maximum_, inverse_temperature, weights.data());
}

uint64_t VocabScan::sum_weights(float inverse_temperature) {
  kernels_.vocab_weight_sums(row_.data(), static_cast<int>(row_.size()), maxima_.data(), maximum_, inverse_temperature,
                             sums_.data());
  return std::accumulate(sums_.begin(), sums_.end(), uint64_t{0});
}

TokenId VocabScan::find(uint64_t target, float inverse_temperature) const {
  size_t i = 0;
  while (target >= sums_[i]) target -= sums_[i++];
  const std::span<const float> tokens = block(i);
  std::array<uint64_t, kVocabBlock> weights;
  weigh(tokens, inverse_temperature, weights);
  size_t j = 0;
  while (target >= weights[j]) target -= weights[j++];
  return static_cast<TokenId>(i * kVocabBlock + j);
}

}  // namespace precast
