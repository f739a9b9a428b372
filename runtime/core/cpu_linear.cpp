// linear: blocks of panels × groups of row tiles.
#include "plugins/cpu/activation_names.h"
#include "runtime/core/cpu_op_maker.h"

namespace precast {

namespace {

// Weights of a block are read from memory once and then serve every row tile, so they have to stay in the L2 cache
// beside a tile of activations (kernels.h). bf16 and f32 kernels pack the activations in each call and so want more
// panels. The op's block_bytes, chosen by timing when the engine was built, replaces it. (A single tile needs no
// block.)
constexpr int64_t kBlockBytes = 128 << 10;
constexpr int64_t kMinFloatPanels = 8;
// Even, like every block: gate and up stay together.
constexpr int64_t kMinPanels = 4;
// Items per thread that are aimed at, so that the last one does not keep the others waiting for long.
constexpr int64_t kItemsPerThread = 4;
// The shortest piece of a single tile is then a 16th of a thread's share.
constexpr int kMostHalvings = 4;

class Linear final : public CpuOp {
 public:
  Linear(const CpuOpMaker& maker, const CpuValue& in, const CpuValue& out)
      : context_(maker.context), in_(in), out_(out) {
    const Attributes& attributes = maker.op.attributes;
    epilogue_ = epilogue_named(attributes.text("epilogue"));
    if (epilogue_ == Epilogue::act || epilogue_ == Epilogue::gated) activation_ = maker.activation();
    const int64_t n = attributes.integer("n", 1, 1 << 27), k = attributes.integer("k", 1, 1 << 26);
    const bool pairs = epilogue_ == Epilogue::gated, has_bias = attributes.integer("has_bias", 0, 1) == 1;
    CpuOpMaker::expect(!pairs || n % 2 == 0, "a gated linear needs an even n");
    CpuOpMaker::expect(!maker.op.weights.empty(), "it has no weight");
    const Section& w = maker.section(0);
    kind_ = weight_kind(maker, w);
    const bool i8 = kind_ == WeightKind::i8;
    maker.expect_counts(epilogue_ == Epilogue::add ? 2 : 1, 1u + (i8 ? 1 : 0) + (has_bias ? 1 : 0));

    CpuOpMaker::expect(in.quantized == i8 && in.columns == k && in.sampled_rows == out.sampled_rows,
                       std::string("its input is not ") + (i8 ? "quantized" : "f32") + " of " + std::to_string(k) +
                           " columns and the output's rows");
    maker.f32_output(pairs ? n / 2 : n, in.sampled_rows);
    if (epilogue_ == Epilogue::add) residual_ = &maker.f32_input(1, n, in.sampled_rows);
    CpuOpMaker::expect(out.data != nullptr || epilogue_ == Epilogue::none, "the logits take no epilogue");
    const int64_t padded_n = pairs ? 2 * round_up(n / 2, kPanel) : round_up(n, kPanel);
    const float* scale = i8 ? maker.vector(1, padded_n) : nullptr;
    if (has_bias) bias_ = maker.vector(i8 ? 2 : 1, padded_n);
    w_ = packed_weights(maker, w, padded_n, padded_k(kind_, k, in.group), in.group, scale);
    panel_bytes_ = static_cast<int64_t>(w.length) / (padded_n / kPanel);
    if (attributes.values.contains("block_bytes")) block_bytes_ = attributes.integer("block_bytes", 1, 1 << 30);
    most_rows_ = i8 ? context_.kernels.tile_rows_i8 : context_.kernels.tile_rows_float;
    call_tiles_ = i8 ? kCallTilesI8 : 1;
  }

  // One panel of a call: see `tail`.
  int64_t scratch_bytes() const override { return call_tiles_ * most_rows_ * kPanel * int64_t{4}; }

  void run(const CpuStep& step) override {
    const int64_t rows = step.rows(out_), tile_rows = even_tile_rows(rows, most_rows_);
    const int64_t tiles = divide_up(rows, tile_rows);
    if (tiles == 1) return run_single_tile(step, static_cast<int>(rows));
    const int64_t panels = w_.n / kPanel, pairs = divide_up(panels, 2);
    const int64_t wanted = kItemsPerThread * context_.pool.num_threads(), blocks = num_blocks(panels, wanted);
    const int64_t groups = std::min(tiles, divide_up(wanted, blocks));  // of row tiles
    const int64_t group_tiles = groups == 0 ? 0 : divide_up(tiles, groups);
    context_.pool.parallel_for(static_cast<int>(blocks * groups), [&](int item, int thread) {
      const int64_t block = item / groups, first = item % groups * group_tiles;
      const int64_t begin = pairs * block / blocks * 2, end = std::min(panels, pairs * (block + 1) / blocks * 2);
      const int64_t last = std::min(tiles, first + group_tiles);
      for (int64_t t = first; t < last; t += call_tiles_) {
        const int64_t row = t * tile_rows, rows_end = std::min(rows, std::min(last, t + call_tiles_) * tile_rows);
        const Tiles call{t, row, static_cast<int>(rows_end - row), static_cast<int>(tile_rows)};
        run_tiles(step, call, static_cast<int>(begin), static_cast<int>(end), thread);
      }
    });
  }

 private:
  // Of one call of a kernel.
  struct Tiles {
    int64_t first, row;  // the first tile, and its first row
    int rows, tile_rows;
  };

  static Epilogue epilogue_named(const std::string& name) {
    if (name == "none") return Epilogue::none;
    if (name == "add") return Epilogue::add;
    if (name == "act") return Epilogue::act;
    CpuOpMaker::expect(name == "gated", "it has the unknown epilogue " + name);
    return Epilogue::gated;
  }

  // A single tile reads the weights once, so that no cache has to hold them: each thread takes a long piece, and then
  // ever shorter ones, which leave none waiting for another.
  void run_single_tile(const CpuStep& step, int rows) const {
    const int64_t panels = w_.n / kPanel, least = kind_ == WeightKind::i8 ? kMinPanels : kMinFloatPanels;
    const int64_t threads = std::clamp<int64_t>(panels / least, 1, context_.pool.num_threads());
    int halvings = 0;
    while (threads > 1 && halvings < kMostHalvings && panels >> (halvings + 1) >= least * threads) ++halvings;
    const int64_t units = threads << halvings;  // that a thread takes half of what is left of, level by level
    const auto at = [&](int64_t item) {
      const int64_t level = std::min<int64_t>(item / threads, halvings), left = units >> level;
      const int64_t share = level < halvings ? left / (2 * threads) : 1;
      const int64_t unit = std::min(units, units - left + (item - level * threads) * share);
      return std::min(panels, divide_up(panels, 2) * unit / units * 2);
    };
    context_.pool.parallel_for(static_cast<int>(threads * (halvings + 1)), [&](int item, int thread) {
      run_tiles(step, {0, 0, rows, rows}, static_cast<int>(at(item)), static_cast<int>(at(item + 1)), thread);
    });
  }

  // Blocks that the panels are cut into, as evenly as pairs of panels can be: few enough to be no smaller than the
  // kernels like them, many enough to stay in the cache, and a multiple of the threads, so that none waits for
  // another's extra one.
  int64_t num_blocks(int64_t panels, int64_t wanted) const {
    const int64_t threads = context_.pool.num_threads();
    const int64_t least = kind_ == WeightKind::i8 ? kMinPanels : kMinFloatPanels;
    const int64_t most = std::max(least, block_bytes_ / panel_bytes_);
    const int64_t blocks = std::min(std::max(wanted, divide_up(panels, most)), std::max<int64_t>(1, panels / least));
    return blocks < threads ? blocks : blocks / threads * threads;
  }

  void run_tiles(const CpuStep& step, const Tiles& tiles, int panel_begin, int panel_end, int thread) const {
    float* y = out_.data == nullptr ? step.logits + tiles.row * out_.ld : out_.row(tiles.row);
    const float* residual = residual_ == nullptr ? nullptr : residual_->row(tiles.row);
    const LinearOut out{y, out_.ld, bias_, residual, epilogue_, activation_};
    if (epilogue_ == Epilogue::none && int64_t{kPanel} * panel_end > out_.ld) {
      --panel_end;
      tail(out, tiles, panel_end, thread);
    }
    if (panel_begin < panel_end) multiply(w_, tiles, panel_begin, panel_end, out);
  }

  // The last panel of logits whose number is no multiple of the panel: only the real columns reach y.
  void tail(const LinearOut& out, const Tiles& tiles, int panel, int thread) const {
    const int64_t channel = int64_t{kPanel} * panel;
    auto* y = reinterpret_cast<float*>(context_.scratch_of(thread));
    LinearWeights w = w_;
    w.w = static_cast<const std::byte*>(w_.w) + panel * panel_bytes_;
    w.scale = w_.scale == nullptr ? nullptr : w_.scale + channel;
    w.n = kPanel;
    multiply(w, tiles, 0, 1,
             {y, kPanel, bias_ == nullptr ? nullptr : bias_ + channel, nullptr, Epilogue::none, activation_});
    for (int r = 0; r < tiles.rows; ++r) {
      std::copy(y + r * kPanel, y + r * kPanel + (out_.ld - channel), out.y + r * out.ldy + channel);
    }
  }

  void multiply(const LinearWeights& w, const Tiles& tiles, int panel_begin, int panel_end,
                const LinearOut& out) const {
    if (kind_ == WeightKind::i8) {
      QuantizedTile x[kCallTilesI8];
      for (int64_t t = 0; t * tiles.tile_rows < tiles.rows; ++t) x[t] = context_.tile(in_, tiles.first + t);
      context_.kernels.linear_i8(w, x, tiles.rows, tiles.tile_rows, panel_begin, panel_end, out);
    } else {
      const auto linear = kind_ == WeightKind::bf16 ? context_.kernels.linear_bf16 : context_.kernels.linear_f32;
      linear(w, in_.row(tiles.row), in_.ld, tiles.rows, panel_begin, panel_end, out);
    }
  }

  CpuContext& context_;
  const CpuValue &in_, &out_;
  const CpuValue* residual_ = nullptr;
  WeightKind kind_;
  Epilogue epilogue_;
  Activation activation_ = Activation::silu;  // unused unless the epilogue has one
  LinearWeights w_;
  const float* bias_ = nullptr;
  int64_t panel_bytes_;
  int64_t block_bytes_ = kBlockBytes;
  int64_t most_rows_;   // of a tile
  int64_t call_tiles_;  // most tiles of a kernel's call
};

}  // namespace

std::unique_ptr<CpuOp> make_linear(const CpuOpMaker& maker) {
  CpuOpMaker::expect(!maker.op.inputs.empty() && maker.op.outputs.size() == 1, "it has no input, or not one output");
  return std::make_unique<Linear>(maker, maker.input(0), maker.output());
}

}  // namespace precast
