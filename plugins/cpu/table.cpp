// The kernel table of the level that this file is compiled for. A new kernel is declared here and in kernels.h.
#include "plugins/cpu/simd.h"

// Whose the kernels are that have nothing to gain from the level: avx2_vnni adds to avx2 one instruction.
#if defined(PRECAST_ISA_AVX2_VNNI)
#define PRECAST_REST avx2
#else
#define PRECAST_REST PRECAST_LEVEL
#endif

namespace precast::PRECAST_LEVEL {

// plugins/cpu/limits.cpp
int64_t peak_i8(int64_t rounds);
int64_t peak_bf16(int64_t rounds);
int64_t peak_f32(int64_t rounds);
void read_bytes(const void* data, int64_t bytes);
// plugins/linear/cpu
void linear_i8(const LinearWeights& w, const QuantizedTile* x, int rows, int tile_rows, int panel_begin, int panel_end,
               const LinearOut& out);
// plugins/embed/cpu
void gather_i8(const LinearWeights& w, int channel, float* y);

}  // namespace precast::PRECAST_LEVEL

namespace precast::PRECAST_REST {

// plugins/quantize/cpu
void quantize_tile(const float* x, int64_t ldx, int rows, int cols, int k, int group, const QuantizedTile& out);
// plugins/linear/cpu
void linear_bf16(const LinearWeights& w, const float* x, int64_t ldx, int rows, int panel_begin, int panel_end,
                 const LinearOut& out);
void linear_f32(const LinearWeights& w, const float* x, int64_t ldx, int rows, int panel_begin, int panel_end,
                const LinearOut& out);
// plugins/embed/cpu
void gather_bf16(const LinearWeights& w, int channel, float* y);
void gather_f32(const LinearWeights& w, int channel, float* y);
// plugins/activation/cpu
void activation(Activation kind, const float* x, int n, float* y);
void gated_activation(Activation kind, const float* gate, const float* up, int n, float* y);
// plugins/scale/cpu, plugins/add/cpu, plugins/softcap/cpu
void scale(const float* x, float factor, int n, float* y);
void add(const float* x, const float* y, int n, float* z);
void softcap(const float* x, float cap, int n, float* y);
// plugins/moe/cpu
void moe_route(const float* logits, int experts, int top_k, bool normalize, int32_t* ids, float* weights);
void weighted_sum(const float* const* x, const float* weights, int count, int n, float* y);
void sigmoid(const float* x, int n, float* y);
// plugins/qk_norm/cpu
void clip(const float* x, float limit, int n, float* y);
// plugins/layer_norm/cpu
void layer_norm(const float* x, const float* gain, const float* bias, float eps, int n, float* y);
// plugins/rms_norm/cpu
void rms_norm(const float* x, const float* gain, float eps, int n, float* y);
// plugins/rope/cpu
void rope(float* x, int heads, int head_size, int rotary_dim, const float* cos, const float* sin);
// plugins/kv_append/cpu
void kv_append(const float* k, const float* v, int head_size, KvDType dtype, void* block, int slot);
// plugins/paged_attention/cpu
void attention_partial(const AttentionShape& s, const AttentionQuery& q, int split, float* partial, float* scratch);
void attention_merge(int head_size, int count, float* state, const float* partial);
void attention_finish(int head_size, const float* state, float* out);
int64_t attention_scratch_floats(const AttentionShape& s, int rows);

// plugins/sampling/cpu
bool vocab_maxima(const float* x, int n, float* maxima);
void vocab_weight_sums(const float* x, int n, const float* maxima, float most, float inverse_temperature,
                       uint64_t* sums);
void vocab_weights(const float* x, int n, float most, float inverse_temperature, uint64_t* weights);
int vocab_at_least(const float* x, int n, float threshold, int32_t* positions);

}  // namespace precast::PRECAST_REST

#define PRECAST_STRING2(x) #x
#define PRECAST_STRING(x) PRECAST_STRING2(x)

namespace precast::PRECAST_LEVEL {

extern const KernelTable kTable;
const KernelTable kTable = {
    .isa = PRECAST_STRING(PRECAST_LEVEL),
    .weights_i8 = kWeight8Zero == 0 ? "panel16x4.s8" : "panel16x4.u8",
    .peak_i8 = peak_i8,
    .peak_bf16 = peak_bf16,
    .peak_f32 = peak_f32,
    .read_bytes = read_bytes,
    .tile_rows_i8 = kTileRowsI8,
    .tile_rows_float = kTileRowsFloat,
    .quantize_tile = PRECAST_REST::quantize_tile,
    .linear_i8 = linear_i8,
    .linear_bf16 = PRECAST_REST::linear_bf16,
    .linear_f32 = PRECAST_REST::linear_f32,
    .gather_i8 = gather_i8,
    .gather_bf16 = PRECAST_REST::gather_bf16,
    .gather_f32 = PRECAST_REST::gather_f32,
    .activation = PRECAST_REST::activation,
    .gated_activation = PRECAST_REST::gated_activation,
    .scale = PRECAST_REST::scale,
    .add = PRECAST_REST::add,
    .softcap = PRECAST_REST::softcap,
    .moe_route = PRECAST_REST::moe_route,
    .weighted_sum = PRECAST_REST::weighted_sum,
    .sigmoid = PRECAST_REST::sigmoid,
    .clip = PRECAST_REST::clip,
    .layer_norm = PRECAST_REST::layer_norm,
    .rms_norm = PRECAST_REST::rms_norm,
    .rope = PRECAST_REST::rope,
    .kv_append = PRECAST_REST::kv_append,
    .attention_partial = PRECAST_REST::attention_partial,
    .attention_merge = PRECAST_REST::attention_merge,
    .attention_finish = PRECAST_REST::attention_finish,
    .attention_scratch_floats = PRECAST_REST::attention_scratch_floats,
    .vocab_maxima = PRECAST_REST::vocab_maxima,
    .vocab_weight_sums = PRECAST_REST::vocab_weight_sums,
    .vocab_weights = PRECAST_REST::vocab_weights,
    .vocab_at_least = PRECAST_REST::vocab_at_least,
};

}  // namespace precast::PRECAST_LEVEL
