// The linears, quantize_tile and the gathers of any ISA level, on numpy arrays. For tests.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "plugins/cpu/isa.h"
#include "plugins/cpu/kernels.h"
#include "runtime/bindings/arrays.h"
#include "runtime/bindings/bindings.h"

namespace precast {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Bytes = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using OptionalRow = std::optional<Read<float, 1>>;

enum class WeightType { i8, bf16, f32 };

// The weight as kernels want it; its four dimensions are [N/16][K/inner][16][inner].
LinearWeights weights(const Bytes& w, WeightType type, const float* scale, size_t scales, int group) {
  const size_t inner = type == WeightType::i8 ? 4 : type == WeightType::bf16 ? 2 : 1;
  const size_t bytes = type == WeightType::i8 ? 1 : type == WeightType::bf16 ? 2 : 4;
  require(w.ndim() == 4 && w.shape(2) == kPanel && w.shape(3) == inner && w.itemsize() == bytes,
          "the weight is not packed as its layout says: [N/16][K/inner][16][inner]");
  require(w.shape(0) > 0 && w.shape(1) > 0 && w.shape(0) < (1u << 26) && w.shape(1) * inner < (1u << 30),
          "the weight is empty or too large");
  const int n = static_cast<int>(w.shape(0)) * kPanel, k = static_cast<int>(w.shape(1) * inner);
  require(type != WeightType::i8 || scales == static_cast<size_t>(n), "the scale has not one value per packed channel");
  require(group >= 0 && group % 4 == 0 && (group == 0 || k % group == 0),
          "the group is no multiple of 4 that divides the packed K");
  return {w.data(), scale, n, k, group};
}

Epilogue epilogue_of(const std::string& name) {
  if (name == "none") return Epilogue::none;
  if (name == "add") return Epilogue::add;
  if (name == "act") return Epilogue::act;
  if (name == "gated") return Epilogue::gated;
  throw nb::value_error(("unknown epilogue \"" + name + "\"; the epilogues are none, add, act and gated").c_str());
}

// y and what is added to it, checked against the weight and the panels of the call.
struct Output {
  Write<float, 2> y;
  OptionalRow bias;
  std::optional<Read<float, 2>> residual;
  std::string epilogue, activation;
  int panel_begin;
  int panel_end;  // −1: all

  LinearOut checked(const LinearWeights& w, size_t rows) {
    const LinearOut out{y.data(),
                        static_cast<int64_t>(y.shape(1)),
                        bias ? bias->data() : nullptr,
                        residual ? residual->data() : nullptr,
                        epilogue_of(epilogue),
                        activation_of(activation)};
    if (panel_end < 0) panel_end = w.n / kPanel;
    const bool pairs = out.epilogue == Epilogue::gated;
    require(0 <= panel_begin && panel_begin <= panel_end && panel_end <= w.n / kPanel,
            "the panels of the call lie outside the weight");
    require(!pairs || (w.n % (2 * kPanel) == 0 && panel_begin % 2 == 0 && panel_end % 2 == 0),
            "gated works on pairs of panels");
    require(y.shape(0) == rows && y.shape(1) >= static_cast<size_t>(pairs ? w.n / 2 : w.n),
            "y has not the rows of x and a column for each packed channel");
    require(!bias || bias->shape(0) == static_cast<size_t>(w.n), "the bias has not one value per packed channel");
    require(residual.has_value() == (out.epilogue == Epilogue::add),
            "a residual belongs to the epilogue add, and add needs one");
    require(!residual || (residual->shape(0) == rows && residual->shape(1) == y.shape(1)),
            "the residual has not the shape of y");
    return out;
  }
};

void quantize(const std::string& level, const Read<float, 2>& x, int k, int group, const Write<int8_t, 3>& q,
              const Write<float, 2>& scale, const Write<int32_t, 2>& sum) {
  const KernelTable& table = kernel_table(level);
  const size_t rows = x.shape(0);
  require(rows >= 1 && rows <= static_cast<size_t>(table.tile_rows_i8), "x has no rows, or more than a tile has");
  require(k > 0 && k % 4 == 0 && group >= 0 && group % 4 == 0 && (group == 0 || k % group == 0),
          "k is no multiple of 4 and of the group");
  require(x.shape(1) >= 1 && x.shape(1) <= static_cast<size_t>(k), "x has no columns, or more than k");
  const size_t groups = group == 0 ? 1 : static_cast<size_t>(k / group);
  require(q.shape(0) == static_cast<size_t>(k / 4) && q.shape(1) == rows && q.shape(2) == 4, "q is not [k/4][rows][4]");
  require(scale.shape(0) == groups && scale.shape(1) == rows && sum.shape(0) == groups && sum.shape(1) == rows,
          "scale and sum are not [groups][rows]");
  table.quantize_tile(x.data(), static_cast<int64_t>(x.shape(1)), static_cast<int>(rows), static_cast<int>(x.shape(1)),
                      k, group, {q.data(), scale.data(), sum.data()});
}

using Tile = std::tuple<Read<int8_t, 3>, Read<float, 2>, Read<int32_t, 2>>;

void linear_i8(const std::string& level, const Bytes& w, const Read<float, 1>& w_scale, int group,
               const std::vector<Tile>& x, Write<float, 2> y, OptionalRow bias, std::optional<Read<float, 2>> residual,
               const std::string& epilogue, const std::string& activation, int panel_begin, int panel_end) {
  const KernelTable& table = kernel_table(level);
  const LinearWeights weight = weights(w, WeightType::i8, w_scale.data(), w_scale.shape(0), group);
  const size_t groups = group == 0 ? 1 : static_cast<size_t>(weight.k / group);
  require(!x.empty() && x.size() <= kCallTilesI8, "x has no tiles, or more than a call takes");
  const size_t tile_rows = std::get<0>(x[0]).shape(1);
  size_t all_rows = 0;
  QuantizedTile tiles[kCallTilesI8];
  for (size_t t = 0; t < x.size(); ++t) {
    const auto& [q, scale, sum] = x[t];
    const size_t rows = q.shape(1);
    require(rows >= 1 && rows <= static_cast<size_t>(table.tile_rows_i8), "q has no rows, or more than a tile has");
    require(rows == tile_rows || (rows < tile_rows && t + 1 == x.size()), "a tile but the last has other rows");
    require(q.shape(0) == static_cast<size_t>(weight.k / 4) && q.shape(2) == 4, "q is not [K/4][rows][4]");
    require(scale.shape(0) == groups && scale.shape(1) == rows && sum.shape(0) == groups && sum.shape(1) == rows,
            "scale and sum are not [groups][rows]");
    // The kernel only reads the tile; QuantizedTile is mutable because quantize_tile fills the same struct.
    tiles[t] = {const_cast<int8_t*>(q.data()), const_cast<float*>(scale.data()), const_cast<int32_t*>(sum.data())};
    all_rows += rows;
  }
  Output output{y, bias, residual, epilogue, activation, panel_begin, panel_end};
  const LinearOut out = output.checked(weight, all_rows);
  nb::gil_scoped_release released;
  table.linear_i8(weight, tiles, static_cast<int>(all_rows), static_cast<int>(tile_rows), output.panel_begin,
                  output.panel_end, out);
}

template <WeightType Type>
void linear_float(const std::string& level, const Bytes& w, const Read<float, 2>& x, Write<float, 2> y,
                  OptionalRow bias, std::optional<Read<float, 2>> residual, const std::string& epilogue,
                  const std::string& activation, int panel_begin, int panel_end) {
  const KernelTable& table = kernel_table(level);
  const LinearWeights weight = weights(w, Type, nullptr, 0, 0);
  const size_t rows = x.shape(0);
  require(rows >= 1 && rows <= static_cast<size_t>(table.tile_rows_float), "x has no rows, or more than a tile has");
  require(x.shape(1) == static_cast<size_t>(weight.k), "x has not the columns of the packed weight");
  Output output{y, bias, residual, epilogue, activation, panel_begin, panel_end};
  const LinearOut out = output.checked(weight, rows);
  const auto kernel = Type == WeightType::bf16 ? table.linear_bf16 : table.linear_f32;
  nb::gil_scoped_release released;
  kernel(weight, x.data(), static_cast<int64_t>(x.shape(1)), static_cast<int>(rows), output.panel_begin,
         output.panel_end, out);
}

void gather(const KernelTable& table, WeightType type, const LinearWeights& weight, int channel,
            const Write<float, 1>& y) {
  require(channel >= 0 && channel < weight.n, "the channel lies outside the weight");
  require(y.shape(0) == static_cast<size_t>(weight.k), "y has not one value per packed column");
  const auto kernel = type == WeightType::i8     ? table.gather_i8
                      : type == WeightType::bf16 ? table.gather_bf16
                                                 : table.gather_f32;
  kernel(weight, channel, y.data());
}

}  // namespace

void bind_linear_kernels(nb::module_& m) {
  m.def(
      "tile_rows",
      [](const std::string& level) {
        const KernelTable& table = kernel_table(level);
        return std::tuple(table.tile_rows_i8, table.tile_rows_float, kCallTilesI8);
      },
      "level"_a, "Most rows of an int8 tile and of a float call, and most tiles of an int8 call.");
  m.def("quantize_tile", &quantize, "level"_a, "x"_a, "k"_a, "group"_a, "q"_a, "scale"_a, "sum"_a,
        "x f32 [rows][cols] → q i8 [k/4][rows][4], scale f32 and sum i32 [groups][rows].");
  m.def("linear_i8", &linear_i8, "level"_a, "w"_a, "w_scale"_a, "group"_a, "x"_a, "y"_a, "bias"_a = nb::none(),
        "residual"_a = nb::none(), "epilogue"_a = "none", "activation"_a = "silu", "panel_begin"_a = 0,
        "panel_end"_a = -1,
        "y f32 [rows][≥ N] (gated: N/2) from quantized tiles (q, scale, sum) of as many rows, the last of fewer; see "
        "kernels.h.");
  m.def("linear_bf16", &linear_float<WeightType::bf16>, "level"_a, "w"_a, "x"_a, "y"_a, "bias"_a = nb::none(),
        "residual"_a = nb::none(), "epilogue"_a = "none", "activation"_a = "silu", "panel_begin"_a = 0,
        "panel_end"_a = -1, "y f32 [rows][≥ N] (gated: N/2) from x f32 [rows][K]; w holds bf16 as any 2-byte type.");
  m.def("linear_f32", &linear_float<WeightType::f32>, "level"_a, "w"_a, "x"_a, "y"_a, "bias"_a = nb::none(),
        "residual"_a = nb::none(), "epilogue"_a = "none", "activation"_a = "silu", "panel_begin"_a = 0,
        "panel_end"_a = -1, "y f32 [rows][≥ N] (gated: N/2) from x f32 [rows][K].");
  m.def(
      "gather_i8",
      [](const std::string& level, const Bytes& w, const Read<float, 1>& w_scale, int channel,
         const Write<float, 1>& y) {
        gather(kernel_table(level), WeightType::i8, weights(w, WeightType::i8, w_scale.data(), w_scale.shape(0), 0),
               channel, y);
      },
      "level"_a, "w"_a, "w_scale"_a, "channel"_a, "y"_a, "y f32 [K] = one channel of a packed int8 weight.");
  m.def(
      "gather_bf16",
      [](const std::string& level, const Bytes& w, int channel, const Write<float, 1>& y) {
        gather(kernel_table(level), WeightType::bf16, weights(w, WeightType::bf16, nullptr, 0, 0), channel, y);
      },
      "level"_a, "w"_a, "channel"_a, "y"_a, "y f32 [K] = one channel of a packed bf16 weight.");
  m.def(
      "gather_f32",
      [](const std::string& level, const Bytes& w, int channel, const Write<float, 1>& y) {
        gather(kernel_table(level), WeightType::f32, weights(w, WeightType::f32, nullptr, 0, 0), channel, y);
      },
      "level"_a, "w"_a, "channel"_a, "y"_a, "y f32 [K] = one channel of a packed f32 weight.");
}

}  // namespace precast
