// Norms, rope, kv_append and paged attention of any ISA level, on numpy arrays. For tests.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <vector>

#include "plugins/cpu/isa.h"
#include "plugins/cpu/kernels.h"
#include "plugins/cpu/kv_dtype_names.h"
#include "runtime/bindings/arrays.h"
#include "runtime/bindings/bindings.h"

namespace precast {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// Throws unless blocks are [pages][kv_block_bytes].
KvDType kv_dtype(const std::string& name, size_t head_size, size_t block_bytes) {
  const std::optional<KvDType> dtype = kv_dtype_named(name);
  require(dtype && head_size >= 1 && head_size <= 4096 &&
              block_bytes == static_cast<size_t>(kv_block_bytes(static_cast<int>(head_size), *dtype)),
          "the blocks are not [pages][bytes of a KV block] of this dtype and head size, or the dtype is unknown");
  return *dtype;
}

void rms_norm(const std::string& level, const Read<float, 2>& x, const std::optional<Read<float, 1>>& gain,
              float epsilon, const Write<float, 2>& y) {
  require(x.shape(0) == y.shape(0) && x.shape(1) == y.shape(1) && x.shape(1) > 0, "y has not the shape of x");
  require(!gain || gain->shape(0) == x.shape(1), "the gain has not one value per column");
  const KernelTable& table = kernel_table(level);
  for (size_t r = 0, n = x.shape(1); r < x.shape(0); ++r) {
    table.rms_norm(x.data() + r * n, gain ? gain->data() : nullptr, epsilon, static_cast<int>(n), y.data() + r * n);
  }
}

void layer_norm(const std::string& level, const Read<float, 2>& x, const std::optional<Read<float, 1>>& gain,
                const std::optional<Read<float, 1>>& bias, float epsilon, const Write<float, 2>& y) {
  require(x.shape(0) == y.shape(0) && x.shape(1) == y.shape(1) && x.shape(1) > 0, "y has not the shape of x");
  require((!gain || gain->shape(0) == x.shape(1)) && (!bias || bias->shape(0) == x.shape(1)),
          "the gain or the bias has not one value per column");
  const KernelTable& table = kernel_table(level);
  for (size_t r = 0, n = x.shape(1); r < x.shape(0); ++r) {
    table.layer_norm(x.data() + r * n, gain ? gain->data() : nullptr, bias ? bias->data() : nullptr, epsilon,
                     static_cast<int>(n), y.data() + r * n);
  }
}

void rope(const std::string& level, const Write<float, 3>& x, const Read<float, 2>& cos, const Read<float, 2>& sin) {
  const size_t half = cos.shape(1);
  require(cos.shape(0) == x.shape(0) && sin.shape(0) == x.shape(0) && sin.shape(1) == half && 2 * half <= x.shape(2),
          "cos and sin are not [rows of x][rotary_dim/2]");
  const KernelTable& table = kernel_table(level);
  for (size_t r = 0; r < x.shape(0); ++r) {
    table.rope(x.data() + r * x.shape(1) * x.shape(2), static_cast<int>(x.shape(1)), static_cast<int>(x.shape(2)),
               static_cast<int>(2 * half), cos.data() + r * half, sin.data() + r * half);
  }
}

void kv_append(const std::string& level, const std::string& kv_cache_dtype, const Write<uint8_t, 2>& blocks, int page,
               int slot, const Read<float, 1>& k, const Read<float, 1>& v) {
  require(k.shape(0) == v.shape(0), "k and v differ in length");
  const KvDType dtype = kv_dtype(kv_cache_dtype, k.shape(0), blocks.shape(1));
  require(page >= 0 && static_cast<size_t>(page) < blocks.shape(0) && slot >= 0 && slot < kPageTokens,
          "the page or the slot lies outside the blocks");
  uint8_t* block = blocks.data() + static_cast<size_t>(page) * blocks.shape(1);
  kernel_table(level).kv_append(k.data(), v.data(), static_cast<int>(k.shape(0)), dtype, block, slot);
}

void attention_partial(const std::string& level, const std::string& kv_cache_dtype, const Read<float, 3>& q,
                       const Read<uint8_t, 2>& blocks, const Read<int32_t, 1>& block_table, int first_position,
                       float scale, int split, const Write<float, 2>& partial, int window, float softcap,
                       const std::optional<Read<float, 1>>& slopes) {
  const size_t rows = q.shape(0), heads = q.shape(1), head_size = q.shape(2);
  const KvDType dtype = kv_dtype(kv_cache_dtype, head_size, blocks.shape(1));
  require(rows >= 1 && rows <= 4096 && heads >= 1 && heads <= 4096, "q has no rows or heads, or too many");
  require(first_position >= 0 && split >= 0 && split < 1 << 20, "the position or the split is negative, or too large");
  const size_t last = static_cast<size_t>(first_position) + rows - 1;
  require(last / kPageTokens < block_table.shape(0), "the block table is too short");
  require(window >= 0 && softcap >= 0 && (!slopes || slopes->shape(0) == heads),
          "the window or the cap is negative, or there is not one slope per head");
  require(partial.shape(0) == rows * heads && partial.shape(1) == head_size + 2, "partial is not [rows·heads][2 + D]");
  std::vector<const void*> pages(std::max<size_t>(block_table.shape(0), (split + 1) * kContextSplit / kPageTokens));
  for (size_t j = 0; j < block_table.shape(0); ++j) {
    const int32_t page = block_table.data()[j];
    require(page >= 0 && static_cast<size_t>(page) < blocks.shape(0), "a page lies outside the blocks");
    pages[j] = blocks.data() + static_cast<size_t>(page) * blocks.shape(1);
  }
  const KernelTable& table = kernel_table(level);
  const AttentionShape shape{
      static_cast<int32_t>(head_size), static_cast<int32_t>(heads), scale, dtype, window, softcap};
  std::vector<float> scratch(static_cast<size_t>(table.attention_scratch_floats(shape, static_cast<int>(rows))));
  table.attention_partial(shape,
                          {q.data(), static_cast<int64_t>(heads * head_size), static_cast<int32_t>(rows),
                           first_position, pages.data(), slopes ? slopes->data() : nullptr},
                          split, partial.data(), scratch.data());
}

void attention_merge(const std::string& level, const Write<float, 2>& state, const Read<float, 2>& partial) {
  require(state.shape(1) > 2 && state.shape(0) == partial.shape(0) && state.shape(1) == partial.shape(1),
          "state and partial are not both [rows·heads][2 + D]");
  kernel_table(level).attention_merge(static_cast<int>(state.shape(1)) - 2, static_cast<int>(state.shape(0)),
                                      state.data(), partial.data());
}

void attention_finish(const std::string& level, const Read<float, 2>& state, const Write<float, 2>& out) {
  require(state.shape(1) > 2 && out.shape(0) == state.shape(0) && out.shape(1) + 2 == state.shape(1),
          "state is not [rows·heads][2 + D], or out not [rows·heads][D]");
  for (size_t i = 0; i < state.shape(0); ++i) {
    kernel_table(level).attention_finish(static_cast<int>(out.shape(1)), state.data() + i * state.shape(1),
                                         out.data() + i * out.shape(1));
  }
}

}  // namespace

void bind_attention_kernels(nb::module_& m) {
  m.def("rms_norm", &rms_norm, "level"_a, "x"_a, "gain"_a.none(), "epsilon"_a, "y"_a, "y f32 [rows][n] from x.");
  m.def("layer_norm", &layer_norm, "level"_a, "x"_a, "gain"_a.none(), "bias"_a.none(), "epsilon"_a, "y"_a,
        "y f32 [rows][n] from x.");
  m.def("rope", &rope, "level"_a, "x"_a, "cos"_a, "sin"_a, "Rotates x f32 [rows][heads][head_size] in place.");
  m.def("kv_append", &kv_append, "level"_a, "kv_cache_dtype"_a, "blocks"_a, "page"_a, "slot"_a, "k"_a, "v"_a,
        "Writes k, v f32 [head_size] to a slot of blocks u8 [pages][bytes of a KV block].");
  m.def(
      "attention_partial", &attention_partial, "level"_a, "kv_cache_dtype"_a, "q"_a, "blocks"_a, "block_table"_a,
      "first_position"_a, "scale"_a, "split"_a, "partial"_a, "window"_a = 0, "softcap"_a = 0.0f,
      "slopes"_a = nb::none(),
      "One context split for q f32 [rows][heads of one KV head][head_size] → partial f32 [rows·heads][2 + head_size].");
  m.def("attention_merge", &attention_merge, "level"_a, "state"_a, "partial"_a, "Merges a later split into state.");
  m.def("attention_finish", &attention_finish, "level"_a, "state"_a, "out"_a, "out f32 [rows·heads][head_size].");
}

}  // namespace precast
