// One context split of attention: scores, softmax and P·V of up to 256 positions.
//
// Query rows and the query heads of one KV head are folded into *lines*: line i is row i / heads_per_kv, head
// i mod heads_per_kv. Orders, the same however many lines a call has:
//   score      Σ q[d]·k[d] in rising d, then · scale
//   sum        of exp(score − max): vectors of the split in rising position, then over the lanes
//   o[d]       Σ p·v in rising position over the positions that the line sees, no others: what lies behind them may be
//              anything, NaN included
#include "plugins/paged_attention/cpu/row_tile.h"

namespace precast::PRECAST_LEVEL {

namespace {

struct Lines {
  const AttentionShape& shape;
  const AttentionQuery& query;
  int begin;  // first position of the split
  int count;  // rows · heads_per_kv

  const float* q(int line) const {
    const int row = line / shape.heads_per_kv, head = line % shape.heads_per_kv;
    return query.q + row * query.ldq + int64_t{head} * shape.head_size;
  }
  // Positions of the split that the line sees: 0 … kContextSplit.
  int seen(int line) const {
    const int n = query.first_position + line / shape.heads_per_kv + 1 - begin;
    return n < 0 ? 0 : n < kContextSplit ? n : kContextSplit;
  }
};

// From how many lines on a bf16 page is widened to f32 once instead of in every row tile: with more than two tiles.
constexpr int kWidenLines = 2 * kMaxRows + 1;

const float* widened(const float* page, int64_t, float*) { return page; }
const float* widened(const bf16_t* page, int64_t elements, float* to) {
  for (int64_t i = 0; i < elements; i += kLanes) store(to + i, load_bf16(page + i));
  return to;
}

// scores[line][page columns] of one page for every line that sees a position of it.
template <typename T>
void page_scores(const Lines& lines, const T* keys, int column, float* scores) {
  for (int i = 0, rows; i < lines.count; i += rows) {
    rows = rows_at_once(lines.count - i);
    if (lines.seen(i + rows - 1) <= column) continue;
    const float* q[kMaxRows];
    for (int r = 0; r < rows; ++r) q[r] = lines.q(i + r);
    accumulate_rows(q, rows, keys, kPageTokens, lines.shape.head_size, kPageTokens,
                    scores + int64_t{i} * kContextSplit + column, kContextSplit, true);
  }
}

// scores → exp(scale·score − max) with zeros behind `seen`; writes max and sum. seen ≥ 1.
void softmax(float* scores, int seen, float scale, float* state) {
  const F32 factor = set1(scale), nothing = set1(-__builtin_inff());
  F32 largest = nothing;
  for (int c = 0; c < seen; c += kLanes) {
    const F32 s = first_lanes(seen - c, mul(load(scores + c), factor), nothing);
    largest = max(largest, s);
    store(scores + c, s);
  }
  const float m = max_lanes(largest);
  F32 sum = zero();
  for (int c = 0; c < seen; c += kLanes) {
    const F32 p = exp(sub(load(scores + c), set1(m)));
    sum = add(sum, p);
    store(scores + c, p);
  }
  state[0] = m;
  state[1] = sum_lanes(sum);
}

// o += p·V of one page for every line that sees a position of it. Lines of a tile may see different numbers of
// positions: the tile covers what all of them see, each line the rest of its own.
template <typename T>
void page_values(const Lines& lines, const T* values, int column, const float* scores, float* partial) {
  const int head_size = lines.shape.head_size;
  const int64_t stride = attention_partial_floats(head_size);
  const auto in_page = [column](int seen) {
    return seen <= column ? 0 : seen - column < kPageTokens ? seen - column : kPageTokens;
  };
  for (int i = 0, rows; i < lines.count; i += rows) {
    rows = rows_at_once(lines.count - i);
    const int shared = in_page(lines.seen(i));
    if (in_page(lines.seen(i + rows - 1)) == 0) continue;
    const float* p[kMaxRows];
    for (int r = 0; r < rows; ++r) p[r] = scores + int64_t{i + r} * kContextSplit + column;
    float* o = partial + i * stride + 2;
    if (shared > 0) accumulate_rows(p, rows, values, head_size, shared, head_size, o, stride, false);
    for (int r = 0; r < rows; ++r) {
      const int rest = in_page(lines.seen(i + r)) - shared;
      if (rest == 0) continue;
      const float* own = p[r] + shared;
      accumulate_rows(&own, 1, values + int64_t{shared} * head_size, head_size, rest, head_size, o + r * stride, stride,
                      false);
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
  for (int i = 0; i < lines.count; ++i) {
    float* state = partial + i * stride;
    state[0] = -__builtin_inff();
    for (int64_t j = 1; j < stride; ++j) state[j] = 0.0f;
  }
  const int columns = lines.seen(lines.count - 1);
  const T* const* pages = reinterpret_cast<const T* const*>(lines.query.pages) + split * (kContextSplit / kPageTokens);
  float* page = scratch;  // a widened half of a page
  float* scores = scratch + half;
  const bool widen = lines.count >= kWidenLines;
  for (int c = 0, j = 0; c < columns; c += kPageTokens, ++j) {
    if (widen) {
      page_scores(lines, widened(pages[j], half, page), c, scores);
    } else {
      if (c + kPageTokens < columns) prefetch(pages[j + 1], half);
      page_scores(lines, pages[j], c, scores);
    }
  }
  for (int i = 0; i < lines.count; ++i) {
    const int seen = lines.seen(i);
    if (seen > 0) softmax(scores + int64_t{i} * kContextSplit, seen, lines.shape.scale, partial + i * stride);
  }
  for (int c = 0, j = 0; c < columns; c += kPageTokens, ++j) {
    if (widen) {
      page_values(lines, widened(pages[j] + half, half, page), c, scores, partial);
    } else {
      if (c + kPageTokens < columns) prefetch(pages[j + 1] + half, half);
      page_values(lines, pages[j] + half, c, scores, partial);
    }
  }
}

}  // namespace

int64_t attention_scratch_floats(const AttentionShape& s, int rows) {
  return int64_t{kPageTokens} * s.head_size + int64_t{rows} * s.heads_per_kv * kContextSplit;
}

void attention_partial(const AttentionShape& s, const AttentionQuery& q, int split, float* partial, float* scratch) {
  const Lines lines{s, q, split * kContextSplit, q.rows * s.heads_per_kv};
  if (s.kv_dtype == KvDType::f32) {
    partial_of<float>(lines, split, partial, scratch);
  } else {
    partial_of<bf16_t>(lines, split, partial, scratch);
  }
}

}  // namespace precast::PRECAST_LEVEL
