// The query rows of a KV head and the query heads that share it, folded into *lines*: line i is row i / heads_per_kv,
// head i mod heads_per_kv.
#pragma once
#include "plugins/cpu/simd.h"

namespace precast::PRECAST_LEVEL {

struct Lines {
  const AttentionShape& shape;
  const AttentionQuery& query;
  int begin;  // first position of the split
  int count;  // rows · heads_per_kv

  const float* q(int line) const {
    const int row = line / shape.heads_per_kv, head = line % shape.heads_per_kv;
    return query.q + row * query.ldq + int64_t{head} * shape.head_size;
  }
  int position(int line) const { return query.first_position + line / shape.heads_per_kv; }
  // The line sees the positions from(line) … seen(line) − 1 of the split; both are 0 … kContextSplit and do not fall
  // from line to line.
  int from(int line) const { return shape.window == 0 ? 0 : in_split(position(line) - shape.window + 1 - begin); }
  int seen(int line) const { return in_split(position(line) + 1 - begin); }
  float slope(int line) const { return query.slopes[line % shape.heads_per_kv]; }

  bool sees_nothing(int line) const { return from(line) >= seen(line); }

  static int in_split(int n) { return n < 0 ? 0 : n < kContextSplit ? n : kContextSplit; }
};

// The cap of a scaled score, and slope · (position of the key − position of the line), of the columns from `column` on.
inline F32 logit(const Lines& lines, int line, F32 score, int column) {
  if (lines.shape.softcap > 0) {
    const F32 cap = set1(lines.shape.softcap);
    score = mul(cap, tanh(div(score, cap)));
  }
  if (lines.query.slopes != nullptr) {
    const F32 distance = add(iota(), set1(static_cast<float>(lines.begin + column - lines.position(line))));
    score = fma(set1(lines.slope(line)), distance, score);
  }
  return score;
}

// The state of a line that sees nothing.
inline void clear_state(int head_size, float* state) {
  state[0] = -__builtin_inff();
  for (int64_t j = 1; j < attention_partial_floats(head_size); ++j) state[j] = 0.0f;
}

}  // namespace precast::PRECAST_LEVEL
