// The kernels that every ISA level provides: plain functions on raw pointers, single-threaded, one piece of work a
// call. Who calls them splits the work (runtime/core/cpu_<op>.cpp); who implements them lives in
// plugins/<op>/cpu/*.cpp.
//
// Bits. A row's result depends on the row alone: never on how many rows a call has, which panels or which pages it
// covers, or on how the caller splits the work. Each kernel's comment states its reduction order.
#pragma once
#include <cstddef>
#include <cstdint>

namespace precast {

using bf16_t = uint16_t;  // the upper half of an IEEE float32

inline constexpr int kPanel = 16;          // output channels of a packed weight panel, on every level
inline constexpr int kPageTokens = 32;     // tokens of a KV page
inline constexpr int kCallTilesI8 = 6;     // most tiles in one call of linear_i8
inline constexpr int kVocabBlock = 256;    // tokens of one maximum of a row of logits
inline constexpr int kContextSplit = 256;  // positions of one attention partial; a multiple of kPageTokens

// ---- activation functions (plugins/activation/reference.py) --------------------------------------------------------

enum class Activation : uint8_t { silu, gelu, gelu_tanh, gelu_quick, relu, relu2 };

// ---- linear -------------------------------------------------------------------------------------------------------

// What happens to y = x·Wᵀ (+ bias) before it is stored.
enum class Epilogue : uint8_t {
  none,   // y[row][n] = acc
  add,    // y[row][n] = residual[row][n] + acc; residual has y's leading dimension and may be y itself
  act,    // y[row][n] = activation(acc)
  gated,  // panels alternate gate, up: y[row][16·p + i] = activation(gate) · up for panel pair p; y has N/2 columns
};

struct LinearOut {
  float* y;  // [rows][ldy], first row of the tile
  int64_t ldy;
  const float* bias;      // [N] in packed channel order, or null
  const float* residual;  // [rows][ldy], first row of the tile; null unless Epilogue::add
  Epilogue epilogue;
  Activation activation;  // of Epilogue::act and Epilogue::gated
};

// Packed weights. N is a multiple of 16 (the packer pads; padded channels are zero and are written to y, whose ldy has
// room). K is a multiple of 4 (int8) or 2 (bf16); the packer pads with zeros and activations are padded alike.
struct LinearWeights {
  const void* w;       // int8: [N/16][K/4][16][4], s8 on avx2, u8 = s8+128 above; bf16: [N/16][K/2][16][2];
                       // f32: [N/16][K][16]
  const float* scale;  // [N], int8 only
  int32_t n, k;
  int32_t group;  // int8: activations are scaled per token and `group` columns of K; 0: per token (one group of K)
};

// A tile of at most tile_rows activation rows, quantized for an int8 linear.
//   q [K/4][rows][4], scale [K/group][rows], sum [K/group][rows] = Σ q over the group
// q = round-half-even(x / scale), −127 … 127; scale = max|x| / 127 over the group. A group of zeros, or one whose scale
// underflows: scale 0, q 0. A group with a NaN or an infinity: scale NaN, q 0, so that all of that row's y turns NaN
// and nothing else does.
struct QuantizedTile {
  int8_t* q;
  float* scale;
  int32_t* sum;
};

// ---- attention ----------------------------------------------------------------------------------------------------

enum class KvDType : uint8_t { f32, bf16, int8, fp8 };

inline constexpr int64_t kv_element_bytes(KvDType dtype) {
  return dtype == KvDType::f32 ? 4 : dtype == KvDType::bf16 ? 2 : 1;
}
// int8 and fp8 (E4M3) keys and values have a scale per token and KV head: value = element · scale. Rounding and what
// zeros and non-finite values become: plugins/kv_append/reference.py.
inline constexpr bool kv_is_scaled(KvDType dtype) { return dtype == KvDType::int8 || dtype == KvDType::fp8; }

// One KV page of one layer and one KV head: K as [head_size][kPageTokens] (tokens are vector lanes of the scores),
// directly followed by V as [kPageTokens][head_size]; scaled ones by f32 scales of K [kPageTokens] and of V likewise.
inline constexpr int64_t kv_block_bytes(int head_size, KvDType dtype) {
  return 2 * kPageTokens * (head_size * kv_element_bytes(dtype) + (kv_is_scaled(dtype) ? 4 : 0));
}

struct AttentionShape {
  int32_t head_size;
  int32_t heads_per_kv;  // query heads that share one KV head
  float scale;           // multiplies q·k
  KvDType kv_dtype;
  int32_t window;  // positions that a row sees, its own included; 0: all up to its own
  float softcap;   // score ← softcap · tanh(score / softcap); 0: not
};

// Query rows of one sequence and one KV head. Row r stands at absolute position p = first_position + r and sees the
// keys of positions max(0, p − window + 1) … p (window 0: 0 … p), all of which lie in pages already.
struct AttentionQuery {
  const float* q;  // row r, head h at q + r·ldq + h·head_size
  int64_t ldq;
  int32_t rows;
  int32_t first_position;
  const void* const*
      pages;  // pages[j] holds positions 32j … 32j+31 of this layer and KV head; what no row sees goes unread
  const float* slopes;                 // [heads_per_kv] ALiBi: score += slope · (position of the key − p); null: not
  const void* const* ahead = nullptr;  // pages that the caller attends to next, if it knows: to be fetched meanwhile
  int32_t ahead_pages = 0;
};

// Running softmax state of one (row, head): m the maximum, l the sum of exp(s − m), o[head_size] = Σ exp(s − m)·v.
// Laid out as [rows·heads_per_kv] of {m, l, o[head_size]} floats, row-major (row, head).
inline constexpr int64_t attention_partial_floats(int head_size) { return head_size + 2; }

struct KernelTable {
  const char* isa;
  const char* weights_i8;  // the layout that linear_i8 and gather_i8 read (docs/engine-format.md)

  // The limits of a thread: `rounds` of multiplications on registers alone, as the linears make them; → operations, two
  // a product. And nothing but reading.
  int64_t (*peak_i8)(int64_t rounds);
  int64_t (*peak_bf16)(int64_t rounds);
  int64_t (*peak_f32)(int64_t rounds);
  void (*read_bytes)(const void* data, int64_t bytes);

  // --- linear. How to split the work: cut the panels into blocks of about 128 KiB of weights (an even number of
  // panels; bf16 and f32: 8 to 32 panels, because each call packs its activations), and let a thread take a block and
  // run all row tiles over it: the weights come from memory once and from the L2 cache for all other tiles. Split the
  // rows evenly over as few tiles as hold them (16 rows of 6: 6 + 6 + 4). With Epilogue::gated panel_begin and
  // panel_end are even. Reduction order, int8: integers exact inside a group; acc = fma(group scale, float(sum of
  // group), acc) over groups in rising K; y = acc · scale[n]. bf16/f32: one accumulator per output, in rising K (bf16
  // on avx512: in pairs of K, x rounded to bf16). The result of a row is the same for every `rows`.
  int32_t tile_rows_i8;     // rows of a full QuantizedTile
  int32_t tile_rows_float;  // most rows in one call of linear_bf16 / linear_f32
  // x [rows][ldx] → tile; rows ≤ tile_rows_i8. k as in LinearWeights, columns from `cols` (≤ k) on are not read
  // and count as zero.
  void (*quantize_tile)(const float* x, int64_t ldx, int rows, int cols, int k, int group, const QuantizedTile& out);
  // x [ceil(rows / tile_rows)], at most kCallTilesI8: tiles of tile_rows ≤ tile_rows_i8 rows, the last one of the
  // others.
  void (*linear_i8)(const LinearWeights& w, const QuantizedTile* x, int rows, int tile_rows, int panel_begin,
                    int panel_end, const LinearOut& out);
  void (*linear_bf16)(const LinearWeights& w, const float* x, int64_t ldx, int rows, int panel_begin, int panel_end,
                      const LinearOut& out);
  void (*linear_f32)(const LinearWeights& w, const float* x, int64_t ldx, int rows, int panel_begin, int panel_end,
                     const LinearOut& out);
  // y[k] = row `channel` of packed weights, as float (the embedding gathers from a tied, packed head).
  void (*gather_i8)(const LinearWeights& w, int channel, float* y);
  void (*gather_bf16)(const LinearWeights& w, int channel, float* y);
  void (*gather_f32)(const LinearWeights& w, int channel, float* y);

  // --- one row of n: y = activation(x); y = activation(gate) · up. y may be x, gate or up.
  void (*activation)(Activation kind, const float* x, int n, float* y);
  void (*gated_activation)(Activation kind, const float* gate, const float* up, int n, float* y);

  // --- one row of n: y = x · factor; z = x + y; y = cap · tanh(x / cap). The output may be an input.
  void (*scale)(const float* x, float factor, int n, float* y);
  void (*add)(const float* x, const float* y, int n, float* z);
  void (*softcap)(const float* x, float cap, int n, float* y);
  // --- one row's experts: the top_k of `experts` logits, of equal ones the lower id, as ids in rising order; their
  // weights are the softmax over all, divided by their sum when `normalize`. A NaN comes last and makes all weights
  // NaN.
  void (*moe_route)(const float* logits, int experts, int top_k, bool normalize, int32_t* ids, float* weights);
  // y = Σ weights[i] · x[i] over i = 0 … count − 1, in that order, from zero; y may be an x.
  void (*weighted_sum)(const float* const* x, const float* weights, int count, int n, float* y);
  void (*sigmoid)(const float* x, int n, float* y);

  // --- one row of n: y = x between −limit and limit; NaN stays NaN. y may be x.
  void (*clip)(const float* x, float limit, int n, float* y);

  // --- one row of n: y = (x − mean) · rsqrt(variance + eps) · gain + bias (null: 1 and 0). y may be x.
  void (*layer_norm)(const float* x, const float* gain, const float* bias, float eps, int n, float* y);

  // --- one row of n: y = x · rsqrt(mean(x²) + eps) · gain (gain null: 1). y may be x.
  void (*rms_norm)(const float* x, const float* gain, float eps, int n, float* y);

  // --- rotates pairs (i, i + rotary_dim/2) of each of `heads` heads in place; cos, sin [rotary_dim/2].
  void (*rope)(float* x, int heads, int head_size, int rotary_dim, const float* cos, const float* sin);

  // --- writes k[head_size], v[head_size] to slot (0 … 31) of a KV block.
  void (*kv_append)(const float* k, const float* v, int head_size, KvDType dtype, void* block, int slot);

  // --- one context split (positions kContextSplit·split …) of the query rows → partial states. Rows that see nothing
  // of the split get m = −inf, l = 0, o = 0. `scratch`: attention_scratch_floats(shape, rows) floats. On avx512 K/V of
  // 16 and 8 bits are multiplied by q and weights of 16 bits (plugins/paged_attention/cpu/by_pairs.h).
  void (*attention_partial)(const AttentionShape& s, const AttentionQuery& q, int split, float* partial,
                            float* scratch);
  // state ← merge(state, partial) for `count` states; state of m = −inf is empty. Splits are merged in rising order.
  void (*attention_merge)(int head_size, int count, float* state, const float* partial);
  // out[head_size] = o / l.
  void (*attention_finish)(int head_size, const float* state, float* out);
  int64_t (*attention_scratch_floats)(const AttentionShape& s, int rows);

  // --- sampling, one row x of n logits in blocks of kVocabBlock. The same bits on all levels. A weight is
  // floor(2^40 · e^((x − most) · inverse_temperature)), for x ≤ most; x may be −∞.
  // maxima[b] = the maximum of block b. Returns false when x has NaN or infinite values.
  bool (*vocab_maxima)(const float* x, int n, float* maxima);
  // sums[b] = Σ weights of block b.
  void (*vocab_weight_sums)(const float* x, int n, const float* maxima, float most, float inverse_temperature,
                            uint64_t* sums);
  void (*vocab_weights)(const float* x, int n, float most, float inverse_temperature, uint64_t* weights);
  // The positions of x ≥ threshold, rising; returns how many.
  int (*vocab_at_least)(const float* x, int n, float threshold, int32_t* positions);
};

}  // namespace precast
