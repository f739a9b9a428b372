// One context split of attention: scores, softmax and P·V of up to 256 positions.
//
// Orders, the same however many lines (lines.h) a call has. On avx512 K/V of 16 and 8 bits have their own (by_pairs.h).
//   score      Σ q[d]·k[d] in rising d (then · the key's scale), · scale, the cap, and the slope's share
//   sum        of exp(score − max): vectors of the split in rising position, then over the lanes
//   o[d]       Σ p·v (p · the value's scale first) in rising position over the positions that the line sees, no others:
//              what lies around them may be anything, NaN included
#include "plugins/paged_attention/cpu/lines.h"
#include "plugins/paged_attention/cpu/row_tile.h"
#if defined(PRECAST_ISA_AVX512)
#include "plugins/paged_attention/cpu/by_pairs.h"
#endif

namespace precast::PRECAST_LEVEL {

namespace {

// From how many lines on a page is widened to f32 once instead of in every row tile: with more than two tiles.
constexpr int kWidenLines = 2 * kMaxRows + 1;

const float* widened(const float* page, int64_t, float*) { return page; }
template <typename T>
const float* widened(const T* page, int64_t elements, float* to) {
  for (int64_t i = 0; i < elements; i += kLanes) store(to + i, load_any(page + i));
  return to;
}

// x[kPageTokens] of each of `rows` lines, times the tokens' scales (null: 1).
void rescale(float* x, int rows, const float* scales) {
  if (scales == nullptr) return;
  for (int r = 0; r < rows; ++r, x += kContextSplit) {
    for (int c = 0; c < kPageTokens; c += kLanes) store(x + c, mul(load(x + c), load(scales + c)));
  }
}

// scores[line][page columns] of one page for every line that sees a position of it.
template <typename T>
void page_scores(const Lines& lines, const T* keys, const float* scales, int column, float* scores) {
  for (int i = 0, rows; i < lines.count; i += rows) {
    rows = rows_at_once(lines.count - i);
    if (lines.seen(i + rows - 1) <= column || lines.from(i) >= column + kPageTokens) continue;
    const float* q[kMaxRows];
    for (int r = 0; r < rows; ++r) q[r] = lines.q(i + r);
    float* out = scores + int64_t{i} * kContextSplit + column;
    accumulate_rows(q, rows, keys, kPageTokens, lines.shape.head_size, kPageTokens, out, kContextSplit, true);
    rescale(out, rows, scales);
  }
}

// scores → exp(logit − max) of what the line sees, with zeros around it up to whole vectors; writes max and sum. The
// line sees something.
void softmax(const Lines& lines, int line, float* scores, float* state) {
  const int from = lines.from(line), seen = lines.seen(line), first = from / kLanes * kLanes;
  const F32 nothing = set1(-__builtin_inff()), scale = set1(lines.shape.scale);
  F32 largest = nothing;
  for (int c = first; c < seen; c += kLanes) {
    const F32 s = first_lanes(from - c, nothing,
                              first_lanes(seen - c, logit(lines, line, mul(load(scores + c), scale), c), nothing));
    largest = max(largest, s);
    store(scores + c, s);
  }
  const float m = max_lanes(largest);
  F32 sum = zero();
  for (int c = first; c < seen; c += kLanes) {
    const F32 p = exp(sub(load(scores + c), set1(m)));
    sum = add(sum, p);
    store(scores + c, p);
  }
  state[0] = m;
  state[1] = sum_lanes(sum);
}

// o += p·V of one page for every line that sees a position of it. Lines of a tile may see different positions: the tile
// covers what all of them see, each line what it sees before and behind that.
template <typename T>
void page_values(const Lines& lines, const T* values, const float* scales, int column, float* scores, float* partial) {
  const int head_size = lines.shape.head_size;
  const int64_t stride = attention_partial_floats(head_size);
  const auto in_page = [column](int at) {
    return at <= column ? 0 : at - column < kPageTokens ? at - column : kPageTokens;
  };
  for (int i = 0, rows; i < lines.count; i += rows) {
    rows = rows_at_once(lines.count - i);
    const int last = i + rows - 1;
    if (in_page(lines.seen(last)) == 0 || in_page(lines.from(i)) == kPageTokens) continue;
    rescale(scores + int64_t{i} * kContextSplit + column, rows, scales);
    const auto accumulate = [&](int line, int count, int from, int to) {
      if (from >= to) return;
      const float* p[kMaxRows];
      for (int r = 0; r < count; ++r) p[r] = scores + int64_t{line + r} * kContextSplit + column + from;
      accumulate_rows(p, count, values + int64_t{from} * head_size, head_size, to - from, head_size,
                      partial + line * stride + 2, stride, false);
    };
    const int shared_end = in_page(lines.seen(i)), shared_from = in_page(lines.from(last));
    if (shared_from < shared_end) {
      for (int r = i; r <= last; ++r) accumulate(r, 1, in_page(lines.from(r)), shared_from);
      accumulate(i, rows, shared_from, shared_end);
      for (int r = i; r <= last; ++r) accumulate(r, 1, shared_end, in_page(lines.seen(r)));
    } else {
      for (int r = i; r <= last; ++r) accumulate(r, 1, in_page(lines.from(r)), in_page(lines.seen(r)));
    }
  }
}

// Asks for the start of the keys or values of the page after the one that is computed: pages lie anywhere, so the
// hardware's prefetchers start anew with each. Measured on Zen 1 with one to four bf16 heads of 64: 10 to 15 % of the
// time.
template <typename T>
void prefetch(const T* p, int64_t elements) {
  constexpr int64_t kBytes = 4096, kLine = 64, kSize = sizeof(T);
  for (int64_t i = 0; i < elements && i < kBytes / kSize; i += kLine / kSize) __builtin_prefetch(p + i);
}

template <typename T>
void partial_of(const Lines& lines, int split, float* partial, float* scratch) {
  const int head_size = lines.shape.head_size;
  const int64_t stride = attention_partial_floats(head_size), half = int64_t{kPageTokens} * head_size;
  for (int i = 0; i < lines.count; ++i) clear_state(head_size, partial + i * stride);
  const int columns = lines.seen(lines.count - 1), begin = lines.from(0) / kPageTokens * kPageTokens;
  const T* const* pages = reinterpret_cast<const T* const*>(lines.query.pages) + split * (kContextSplit / kPageTokens);
  const auto scales = [half](const T* block, int of_values) {
    return kScaled<T> ? reinterpret_cast<const float*>(block + 2 * half) + of_values * kPageTokens : nullptr;
  };
  float* page = scratch;  // a widened half of a page
  float* scores = scratch + half;
  const bool widen = lines.count >= kWidenLines;
  for (int c = begin, j = c / kPageTokens; c < columns; c += kPageTokens, ++j) {
    if (widen) {
      page_scores(lines, widened(pages[j], half, page), scales(pages[j], 0), c, scores);
    } else {
      if (c + kPageTokens < columns) prefetch(pages[j + 1], half);
      page_scores(lines, pages[j], scales(pages[j], 0), c, scores);
    }
  }
  for (int i = 0; i < lines.count; ++i) {
    if (lines.sees_nothing(i)) continue;
    softmax(lines, i, scores + int64_t{i} * kContextSplit, partial + i * stride);
  }
  for (int c = begin, j = c / kPageTokens; c < columns; c += kPageTokens, ++j) {
    if (widen) {
      page_values(lines, widened(pages[j] + half, half, page), scales(pages[j], 1), c, scores, partial);
    } else {
      if (c + kPageTokens < columns) prefetch(pages[j + 1] + half, half);
      page_values(lines, pages[j] + half, scales(pages[j], 1), c, scores, partial);
    }
  }
}

}  // namespace

int64_t attention_scratch_floats(const AttentionShape& s, int rows) {
#if defined(PRECAST_ISA_AVX512)
  if (s.kv_dtype != KvDType::f32) return PairScratch(s.head_size, nullptr).floats;
#endif
  return int64_t{kPageTokens} * s.head_size + int64_t{rows} * s.heads_per_kv * kContextSplit;
}

void attention_partial(const AttentionShape& s, const AttentionQuery& q, int split, float* partial, float* scratch) {
  const Lines lines{s, q, split * kContextSplit, q.rows * s.heads_per_kv};
  with_element(s.kv_dtype, [&]<typename T>(T*) {
#if defined(PRECAST_ISA_AVX512)
    if constexpr (sizeof(T) <= 2) {
      ByPairs<T>(lines, split, partial, scratch).run();
      return;
    } else
#endif
      partial_of<T>(lines, split, partial, scratch);
  });
}

}  // namespace precast::PRECAST_LEVEL
