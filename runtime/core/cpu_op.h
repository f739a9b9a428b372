// What the ops of the CPU backend share: values in the arena, the step that runs, and the machinery around them.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/cpu/kernels.h"
#include "runtime/core/attention_schedule.h"
#include "runtime/core/core.h"
#include "runtime/core/engine_file.h"
#include "runtime/core/kv_pool.h"
#include "runtime/core/memory.h"
#include "runtime/core/thread_pool.h"

namespace precast {

inline int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }
inline int64_t divide_up(int64_t x, int64_t step) { return (x + step - 1) / step; }

// Rows of a tile (the last may have fewer) when `rows` are spread evenly over as few tiles of at most `most` as hold
// them: 14 rows of 6 are 5 + 5 + 4, since a tile of two costs nearly what one of four does.
inline int64_t even_tile_rows(int64_t rows, int64_t most) {
  return rows == 0 ? most : divide_up(rows, divide_up(rows, most));
}

// Bytes of a QuantizedTile of `rows` rows of k columns, as CpuContext::tile lays it out.
inline int64_t quantized_tile_bytes(int64_t k, int64_t group, int64_t rows) {
  const int64_t groups = group == 0 ? 1 : k / group;
  return round_up(k * rows, 64) + 2 * round_up(4 * groups * rows, 64);
}

// The model, as the plan's attributes say.
struct CpuModel {
  ModelLimits limits;
  int32_t num_layers, num_heads, num_kv_heads, head_size;
  KvDType kv_dtype;

  int32_t heads_per_kv() const { return num_heads / num_kv_heads; }
  int32_t max_pages() const { return static_cast<int32_t>(divide_up(limits.max_seq_len, kPageTokens)); }
};

// A buffer of the plan, where it lies.
struct CpuValue {
  bool quantized, sampled_rows;
  int32_t columns, group;
  int32_t k = 0;              // quantized: columns, padded as int8 linears want them
  int64_t ld = 0;             // f32: floats from row to row
  int64_t tile_bytes = 0;     // quantized: bytes of a full QuantizedTile
  std::byte* data = nullptr;  // null: it lies where the caller wants the logits

  float* row(int64_t r) const { return reinterpret_cast<float*>(data) + r * ld; }
  // Whoever writes an f32 row keeps the columns behind it zero: a linear reads them with zero weights, and 0 · NaN is
  // NaN.
  void clear_padding(int64_t r) const { std::fill(row(r) + columns, row(r) + ld, 0.0f); }
};

// cos and sin of the step's positions for one set of inverse frequencies, [T][rotary_dim/2].
struct RopeTable {
  const float* inverse_frequencies;
  double attention_factor;
  int32_t rotary_dim;
  float *cos, *sin;

  int64_t floats(int64_t rows) const { return rows * (rotary_dim / 2); }
};

// The step that runs.
struct CpuStep {
  const StepBatch& batch;
  const int32_t* positions;   // [T]
  const int32_t* row_tables;  // [T] where the block table of the row's sequence begins, in every group
  const AttentionSchedule& attention;
  float* logits;

  float* row(const CpuValue& v, int64_t r) const { return v.data == nullptr ? logits + r * v.ld : v.row(r); }
  int32_t rows(const CpuValue& v) const {
    return static_cast<int32_t>(v.sampled_rows ? batch.logit_rows.size() : batch.tokens.size());
  }
};

// Where the K/V of a layer lies.
struct KvLayer {
  size_t group;
  int index;  // among the group's layers
};

// Room for the partial states of attention whose context splits are separate items of work; one op uses it at a time.
struct AttentionWorkspace {
  AttentionLimits limits;
  Memory partials;                               // [limits.max_partials] states of a row's heads
  std::unique_ptr<std::atomic<int32_t>[]> done;  // [tile][KV head] splits that are done; 0 between ops
};

// What ops run with; lives as long as they do.
struct CpuContext {
  std::shared_ptr<const EngineFile> file;
  const KernelTable& kernels;
  CpuModel model;
  ThreadPool pool;
  std::vector<KvPool> pools;       // by layer group
  std::vector<KvLayer> kv_layers;  // by layer
  std::vector<CpuValue> values;    // by number of the plan's buffer
  std::vector<RopeTable> rope_tables;
  AttentionWorkspace attention;
  std::vector<Memory> scratch;  // by thread
  Memory workspace;             // of the op that runs

  std::byte* scratch_of(int thread) const { return scratch[static_cast<size_t>(thread)].data(); }

  // Tile `index` of a quantized value.
  QuantizedTile tile(const CpuValue& v, int64_t index) const {
    std::byte* p = v.data + index * v.tile_bytes;
    const int64_t rows = kernels.tile_rows_i8, groups = v.group == 0 ? 1 : v.k / v.group;
    std::byte* scale = p + round_up(v.k * rows, 64);
    std::byte* sum = scale + round_up(4 * groups * rows, 64);
    return {reinterpret_cast<int8_t*>(p), reinterpret_cast<float*>(scale), reinterpret_cast<int32_t*>(sum)};
  }

  // fn(begin, end, thread) over `rows` rows, cut at multiples of `unit`. Little work stays on the calling thread:
  // waking the others takes about as long as a few thousand floats do.
  template <typename Fn>
  void for_rows(int64_t rows, int64_t floats_per_row, int64_t unit, const Fn& fn) {
    constexpr int64_t kInlineFloats = 8192, kItemsPerThread = 4;
    if (rows <= unit || rows * floats_per_row <= kInlineFloats) {
      if (rows > 0) fn(int64_t{0}, rows, 0);
      return;
    }
    const int64_t step = round_up(divide_up(rows, kItemsPerThread * pool.num_threads()), unit);
    pool.parallel_for(static_cast<int>(divide_up(rows, step)),
                      [&](int item, int thread) { fn(item * step, std::min(rows, (item + 1) * step), thread); });
  }
};

// One op of the plan, ready to run.
class CpuOp {
 public:
  virtual ~CpuOp() = default;
  virtual void run(const CpuStep& step) = 0;
  // What it uses of each thread's scratch memory.
  virtual int64_t scratch_bytes() const { return 0; }
  // What it uses of the workspace, which all ops share: nothing in it lasts from op to op.
  virtual int64_t workspace_bytes() const { return 0; }
};

}  // namespace precast
