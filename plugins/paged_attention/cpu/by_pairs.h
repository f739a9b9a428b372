// One context split of attention on AVX-512 for K/V of 16 and 8 bits, by products of pairs (pair_tile.h). Orders, the
// same however many lines a call has:
//   q          rounded to bf16; for int8 to multiples of max|q| / limit, limit = 32,767 or what int32 sums leave
//   score      Σ q[d]·k[d] over pairs of d, in rising d (then · the key's scale), · scale, the cap, the slope's share
//   sum        of p = 2^((score − max) · log2 e): vectors of the split in rising position, then over the lanes
//   o[d]       Σ p·v over pairs of positions, 2i and 2i + 1, in rising position. Before, p is multiplied by the value's
//              scale and rounded to bf16; for int8 to multiples of max p / 32,767. What a line does not see counts as
//              zero, whatever it is.
// Few lines (kPageLines) read pages as they are; for more, a split's pages are interleaved once.
#pragma once
#include "plugins/paged_attention/cpu/lines.h"
#include "plugins/paged_attention/cpu/pair_tile.h"

namespace precast::PRECAST_LEVEL {

inline constexpr int kSplitPages = kContextSplit / kPageTokens, kPagePairs = kPageTokens / 2;

constexpr int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Memory of a call, in units of 4 bytes; tiles of lines take turns.
struct PairScratch {
  int64_t value_columns, chunks;  // of an interleaved row of V; of kLinePairs pairs of d
  Pair* keys;                     // [page][pairs of d][32]
  Pair* values;                   // [pairs of tokens][value_columns]
  Pair* q;                        // [chunk][line][kLinePairs]
  Pair* p;                        // [line][kLinePairs]
  float* scores;                  // [line][kContextSplit]
  float* o;                       // [line][value_columns]
  int64_t floats;

  PairScratch(int head_size, float* at) {
    value_columns = round_up(head_size, kTileColumns);
    chunks = round_up(head_size, 2 * kLinePairs) / (2 * kLinePairs);
    int64_t used = 0;
    const auto take = [&](int64_t count) {
      float* part = at == nullptr ? nullptr : at + used;
      used += count;
      return part;
    };
    keys = reinterpret_cast<Pair*>(take(int64_t{kContextSplit} * ((head_size + 1) / 2)));
    values = reinterpret_cast<Pair*>(take(kLinePairs * value_columns));
    q = reinterpret_cast<Pair*>(take(chunks * kTileLines * kLinePairs));
    p = reinterpret_cast<Pair*>(take(kTileLines * kLinePairs));
    scores = take(kTileLines * kContextSplit);
    o = take(kTileLines * value_columns);
    floats = used;
  }
};

// 2^x for x ≤ 0 within 2e-7 of it, exactly 1 at 0 and exactly 0 below −150; NaN stays NaN. 2^fraction is a minimax fit.
inline F32 exp2_below(F32 x) {
  x = max(set1(-160.0f), x);
  const F32 n = round_even(x), f = sub(x, n);
  F32 y = set1(0.00132647273f);
  y = fma(y, f, set1(0.00967151275f));
  y = fma(y, f, set1(0.0555073374f));
  y = fma(y, f, set1(0.240222421f));
  y = fma(y, f, set1(0.693146978f));
  y = fma(y, f, set1(1.0f));
  return _mm512_scalef_ps(y, n);
}

// 16 floats rounded to bf16; denormals become zero.
inline __m256i bf16_words(F32 x) {
#if defined(PRECAST_EMULATE_ISA)
  return emulated::to_bf16(x);
#else
  __m256i y;
  asm("vcvtneps2bf16 %1, %0" : "=v"(y) : "v"(x));
  return y;
#endif
}

// 16 floats as 16-bit numbers, two a pair: rounded to bf16, or to integers.
template <bool Integer>
inline void store_words(Pair* to, F32 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      Integer ? _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x)) : bf16_words(x));
}

// What floats are multiplied by to become integers of at most `limit`, and what the integers are multiplied by to be
// the floats again. `most`: the largest magnitude. Below 2^-100 all counts as zero; what is not finite makes all NaN.
struct Fixed {
  float inverse, scale;

  Fixed(float most, float limit) : inverse(0), scale(0) {
    if (most >= 0x1p-100f) {
      inverse = limit / most;
      scale = most / limit;
    }
    if (!(most <= 0x1.fffffep127f)) inverse = 0, scale = __builtin_nanf("");
  }
};

// The largest by its bits: magnitudes are ordered as they are, with infinity and NaN on top.
inline float largest_bits(__m512i x) {
  alignas(64) uint32_t lanes[kLanes];
  _mm512_storeu_si512(lanes, x);
  uint32_t most = 0;
  for (const uint32_t lane : lanes) most = lane > most ? lane : most;
  float y;
  __builtin_memcpy(&y, &most, 4);
  return y;
}

template <typename T>
class ByPairs {
 public:
  ByPairs(const Lines& lines, int split, float* partial, float* scratch)
      : lines_(lines),
        head_size_(lines.shape.head_size),
        partial_(partial),
        memory_(head_size_, scratch),
        pages_(reinterpret_cast<const T* const*>(lines.query.pages) + int64_t{split} * kSplitPages),
        page_begin_(lines.from(0) / kPageTokens),
        page_end_((lines.seen(lines.count - 1) + kPageTokens - 1) / kPageTokens),
        from_pages_(lines.count <= kPageLines<T> && head_size_ % kTileColumns == 0) {}

  void run() {
    for (int i = 0; i < lines_.count; ++i) {
      if (lines_.sees_nothing(i)) clear_state(head_size_, state_of(i));
    }
    if (!from_pages_) {
      for (int j = page_begin_; j < page_end_; ++j) interleave(j);
    }
    const int tiles = (lines_.count + kTileLines - 1) / kTileLines;
    for (int t = 0; t < tiles; ++t) {  // of nearly the same size
      const int first = static_cast<int>(int64_t{lines_.count} * t / tiles);
      run_tile(first, static_cast<int>(int64_t{lines_.count} * (t + 1) / tiles) - first);
    }
  }

 private:
  static constexpr bool kInteger = kIntegerPairs<T>;
  static constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

  int64_t half() const { return int64_t{kPageTokens} * head_size_; }
  int key_pairs() const { return (head_size_ + 1) / 2; }
  float* state_of(int line) const { return partial_ + line * attention_partial_floats(head_size_); }
  const T* values_of(int j) const { return pages_[j] + half(); }
  const float* scales_of(int j) const { return reinterpret_cast<const float*>(pages_[j] + 2 * half()); }

  // What is fetched while the keys (half 0) or values (1) of page j are multiplied: in the order of use, what comes
  // kAhead pages behind them. Into the L2 cache, which has more room for requests than L1 has.
  static constexpr int kAhead = 4;
  const T* ahead_of(int half_index, int j) const {
    const int n = page_end_ - page_begin_, i = half_index * n + j - page_begin_ + kAhead;
    if (i < n) return pages_[page_begin_ + i];
    if (i < 2 * n) return values_of(page_begin_ + i - n);
    const AttentionQuery& query = lines_.query;
    return i - 2 * n < query.ahead_pages ? static_cast<const T*>(query.ahead[i - 2 * n]) : values_of(j);
  }

  void interleave(int j) {
    const Interleave pairs;
    const auto put = [&](Words even, Words odd, Pair* to) {
      F32 first, second;
      pairs(even, odd, first, second);
      store(reinterpret_cast<float*>(to), first);
      store(reinterpret_cast<float*>(to + kLanes), second);
    };
    const T* page = pages_[j];
    const T* ahead = pages_[j + 1 < page_end_ ? j + 1 : j];
    Pair* to = memory_.keys + int64_t{j} * key_pairs() * kPageTokens;
    for (int64_t d = 0, at = 0; d < head_size_; d += 2, at += 2 * kPageTokens, to += kPageTokens) {
      const bool odd = d + 1 < head_size_;
      put(load_words(page + at), odd ? load_words(page + at + kPageTokens) : _mm512_setzero_si512(), to);
      prefetch(ahead + at);
      prefetch(ahead + at + kPageTokens);
    }
    to = memory_.values + int64_t{j} * kPagePairs * memory_.value_columns;
    for (int64_t t = 0, at = half(); t < kPageTokens; t += 2, at += 2 * head_size_, to += memory_.value_columns) {
      for (int c = 0; c < head_size_; c += kTileColumns) {
        const T* row = page + at + c;
        if (c + kTileColumns <= head_size_) {
          put(load_words(row), load_words(row + head_size_), to + c);
        } else {
          put(load_some(row, head_size_ - c), load_some(row + head_size_, head_size_ - c), to + c);
        }
        prefetch(ahead + at + c);
        prefetch(ahead + at + head_size_ + c);
      }
    }
  }

  static Words load_some(const T* p, int n) {
    T lanes[kTileColumns] = {};
    for (int i = 0; i < n; ++i) lanes[i] = p[i];
    return load_words(lanes);
  }

  void run_tile(int first, int count) {
    const int last = first + count - 1;
    const int begin = lines_.from(first) / kPageTokens;
    const int end = (lines_.seen(last) + kPageTokens - 1) / kPageTokens;
    if (begin >= end) return;
    float q_scale[kTileLines], o_scale[kTileLines];
    for (int r = 0; r < count; ++r) q_scale[r] = pack_q(first + r, r);
    for (int j = begin; j < end; ++j) score_page(j, count);
    for (int r = 0; r < count; ++r) {
      if (!lines_.sees_nothing(first + r)) o_scale[r] = softmax(first + r, r, q_scale[r]);
    }
    add_values(first, count);
    for (int r = 0; r < count; ++r) {
      if (!lines_.sees_nothing(first + r)) finish(first + r, r, o_scale[r]);
    }
  }

  // → what the line's scores are multiplied by.
  float pack_q(int line, int r) {
    const float* q = lines_.q(line);
    Fixed fixed(1.0f, 1.0f);
    if constexpr (kInteger) {
      __m512i most = _mm512_setzero_si512();
      for (int d = 0; d < head_size_; d += kLanes) {
        most = _mm512_max_epu32(most, _mm512_castps_si512(abs(load_first(q + d, head_size_ - d))));
      }
      const int64_t sums_leave = 0x7FFFFFFF / (int64_t{127} * head_size_);
      fixed = Fixed(largest_bits(most), static_cast<float>(sums_leave < 32767 ? sums_leave : 32767));
    }
    for (int d = 0; d < head_size_; d += kLanes) {
      const int chunk = d / (2 * kLinePairs), pair = d / 2 % kLinePairs;
      F32 x = load_first(q + d, head_size_ - d);
      if (kInteger) x = fixed.inverse == 0 ? zero() : mul(x, set1(fixed.inverse));
      store_words<kInteger>(memory_.q + (chunk * kTileLines + r) * kLinePairs + pair, x);
    }
    return fixed.scale;
  }

  void score_page(int j, int count) {
    float* out = memory_.scores + j * kPageTokens;
    for (int64_t chunk = 0; chunk < memory_.chunks; ++chunk) {
      const int at = static_cast<int>(chunk) * kLinePairs;
      const int pairs = key_pairs() - at < kLinePairs ? key_pairs() - at : kLinePairs;
      const Pair* q = memory_.q + chunk * kTileLines * kLinePairs;
      if (from_pages_) {
        const T* keys = pages_[j];
        const T* ahead = ahead_of(0, j);
        const int64_t offset = int64_t{2} * at * kPageTokens;
        accumulate_pairs(PageRows<T>{keys + offset, kPageTokens, ahead + offset}, q, count, pairs, out, kContextSplit,
                         chunk == 0);
      } else {
        const Pair* keys = memory_.keys + (int64_t{j} * key_pairs() + at) * kPageTokens;
        accumulate_pairs(PairRows<kInteger>{keys, kPageTokens}, q, count, pairs, out, kContextSplit, chunk == 0);
      }
    }
  }

  // Scores of a line, which sees something, → p; writes max and sum. → What the line's o is multiplied by.
  float softmax(int line, int r, float q_scale) {
    const int from = lines_.from(line), seen = lines_.seen(line), first = from / kLanes * kLanes;
    float* scores = memory_.scores + r * kContextSplit;
    Pair* p = memory_.p + r * kLinePairs;
    const bool plain = lines_.shape.softcap == 0 && lines_.query.slopes == nullptr;
    const F32 nothing = set1(-__builtin_inff());
    const F32 factor = set1(lines_.shape.scale * q_scale * (plain ? kLog2E : 1.0f));
    F32 largest = nothing;
    const auto scale_scores = [&](const auto& finish_logit) __attribute__((always_inline)) {
      for (int c = first; c < seen; c += kLanes) {
        F32 s = load(scores + c);
        if constexpr (kInteger) s = _mm512_cvtepi32_ps(_mm512_castps_si512(s));
        if constexpr (kScaled<T>) s = mul(s, load(scales_of(c / kPageTokens) + c % kPageTokens));
        s = finish_logit(mul(s, factor), c);
        if (c < from || c + kLanes > seen) s = first_lanes(from - c, nothing, first_lanes(seen - c, s, nothing));
        largest = max(largest, s);
        store(scores + c, s);
      }
    };
    if (plain) {
      scale_scores([](F32 s, int) { return s; });
    } else {
      scale_scores([&](F32 s, int c) { return mul(logit(lines_, line, s, c), set1(kLog2E)); });
    }
    const float m = max_lanes(largest);
    F32 sum = zero();
    __m512i most = _mm512_setzero_si512();
    for (int c = first; c < seen; c += kLanes) {
      F32 x = exp2_below(sub(load(scores + c), set1(m)));
      sum = add(sum, x);
      if constexpr (kScaled<T>) {
        x = mul(x, load(scales_of(c / kPageTokens) + kPageTokens + c % kPageTokens));
        if (c < from || c + kLanes > seen) x = first_lanes(from - c, zero(), first_lanes(seen - c, x, zero()));
      }
      if constexpr (kInteger) {
        most = _mm512_max_epu32(most, _mm512_castps_si512(x));
        store(scores + c, x);
      } else {
        store_words<false>(p + c / 2, x);
      }
    }
    float* state = state_of(line);
    state[0] = m * kLn2;
    state[1] = sum_lanes(sum);
    if constexpr (!kInteger) return 1.0f;
    const Fixed fixed(largest_bits(most), 32767.0f);
    for (int c = first; c < seen; c += kLanes) {
      store_words<true>(p + c / 2, fixed.inverse == 0 ? zero() : mul(load(scores + c), set1(fixed.inverse)));
    }
    return fixed.scale;
  }

  // o of the tile's lines. They may see different positions: the tile covers the pairs that all of them see, each line
  // what it sees before and behind these.
  void add_values(int first, int count) {
    for (int64_t i = 0; i < count * memory_.value_columns; i += kLanes) store(memory_.o + i, zero());
    const int last = first + count - 1;
    const int shared_begin = (lines_.from(last) + 1) / 2, shared_end = lines_.seen(first) / 2;
    const auto own = [&](int begin_or_zero, int end_or_all) {
      for (int r = 0; r < count; ++r) {
        const int begin = lines_.from(first + r) / 2, end = (lines_.seen(first + r) + 1) / 2;
        own_pairs(first + r, r, begin > begin_or_zero ? begin : begin_or_zero, end < end_or_all ? end : end_or_all);
      }
    };
    if (shared_begin >= shared_end) return own(0, kLinePairs);
    own(0, shared_begin);
    shared_pairs(count, shared_begin, shared_end);
    own(shared_end, kLinePairs);
  }

  // Calls f(source, pair) with the values of the pairs begin … end − 1, page by page when that is where they are.
  // f: (source of the columns from c on, first pair, number of pairs, c).
  template <typename F>
  void with_values(int begin, int end, F f) {
    const int64_t ld = memory_.value_columns;
    if (!from_pages_) {
      for (int c = 0; begin < end && c < ld; c += kTileColumns) {
        f(PairRows<kInteger>{memory_.values + begin * ld + c, ld}, begin, end - begin, c);
      }
      return;
    }
    for (int next; begin < end; begin = next) {
      const int j = begin / kPagePairs, page_end = (j + 1) * kPagePairs;
      next = page_end < end ? page_end : end;
      const T* ahead = ahead_of(1, j);
      for (int c = 0; c < head_size_; c += kTileColumns) {
        const int64_t offset = int64_t{2} * (begin % kPagePairs) * head_size_ + c;
        f(PageRows<T>{values_of(j) + offset, head_size_, ahead + offset}, begin, next - begin, c);
      }
    }
  }

  void shared_pairs(int count, int begin, int end) {
    const int64_t ld = memory_.value_columns;
    with_values(begin, end, [&](const auto& source, int pair, int pairs, int c) {
      accumulate_pairs(source, memory_.p + pair, count, pairs, memory_.o + c, ld, false);
    });
  }

  // Pairs of one line, of which it may see one half.
  void own_pairs(int line, int r, int begin, int end) {
    const int from = lines_.from(line), seen = lines_.seen(line);
    const auto sees = [&](int at) { return at >= from && at < seen; };
    const Pair* p = memory_.p + r * kLinePairs;
    with_values(begin, end, [&](const auto& source, int pair, int pairs, int c) {
      float* out = memory_.o + r * memory_.value_columns + c;
      F32 sums[2] = {load(out), load(out + kLanes)};
      for (int i = 0; i < pairs; ++i) {
        const uint32_t mask = (sees(2 * (pair + i)) ? 0xFFFFu : 0) | (sees(2 * (pair + i) + 1) ? 0xFFFF0000u : 0);
        const __m512i seen_halves = _mm512_set1_epi32(static_cast<int32_t>(mask));
        F32 b[2];
        source.load(i, b[0], b[1]);
        for (int v = 0; v < 2; ++v) {
          b[v] = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(b[v]), seen_halves));
        }
        dot_pairs<kInteger>(sums[0], sums[1], b[0], b[1], p + pair + i);
      }
      store(out, sums[0]);
      store(out + kLanes, sums[1]);
    });
  }

  void finish(int line, int r, float scale) {
    float* out = state_of(line) + 2;
    const float* o = memory_.o + r * memory_.value_columns;
    for (int c = 0; c < head_size_; c += kLanes) {
      F32 x = load(o + c);
      if constexpr (kInteger) x = mul(_mm512_cvtepi32_ps(_mm512_castps_si512(x)), set1(scale));
      store_first(out + c, head_size_ - c, x);
    }
  }

  const Lines& lines_;
  const int head_size_;
  float* partial_;
  const PairScratch memory_;
  const T* const* pages_;
  const int page_begin_, page_end_;  // of the split
  const bool from_pages_;
};

}  // namespace precast::PRECAST_LEVEL
