// What sampling does over a whole vocabulary, of any ISA level, on numpy arrays. For tests.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "plugins/cpu/isa.h"
#include "plugins/cpu/kernels.h"
#include "runtime/bindings/arrays.h"
#include "runtime/bindings/bindings.h"

namespace precast {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Row = Read<float, 1>;

int length(const Row& x) {
  require(x.shape(0) >= 1 && x.shape(0) <= 1u << 30, "x is empty, or longer than any vocabulary");
  return static_cast<int>(x.shape(0));
}

size_t blocks(const Row& x) { return (x.shape(0) + kVocabBlock - 1) / kVocabBlock; }

}  // namespace

void bind_sampling_kernels(nb::module_& m) {
  m.attr("VOCAB_BLOCK") = kVocabBlock;
  m.def(
      "vocab_maxima",
      [](const std::string& level, const Row& x) {
        std::vector<float> maxima(blocks(x));
        const bool finite = kernel_table(level).vocab_maxima(x.data(), length(x), maxima.data());
        return nb::make_tuple(maxima, finite);
      },
      "level"_a, "x"_a,
      nb::sig("def vocab_maxima(level: str, x: numpy.typing.NDArray[numpy.float32]) -> "
              "tuple[list[float], bool]"),
      "The maximum of every block of x f32 [n], and whether all of x is finite.");
  m.def(
      "vocab_weight_sums",
      [](const std::string& level, const Row& x, float most, float inverse_temperature) {
        std::vector<float> maxima(blocks(x));
        std::vector<uint64_t> sums(blocks(x));
        const KernelTable& kernels = kernel_table(level);
        kernels.vocab_maxima(x.data(), length(x), maxima.data());
        kernels.vocab_weight_sums(x.data(), length(x), maxima.data(), most, inverse_temperature, sums.data());
        return sums;
      },
      "level"_a, "x"_a, "most"_a, "inverse_temperature"_a, "The weights of every block of x f32 [n] ≤ most, added up.");
  m.def(
      "vocab_weights",
      [](const std::string& level, const Row& x, float most, float inverse_temperature) {
        std::vector<uint64_t> weights(x.shape(0));
        kernel_table(level).vocab_weights(x.data(), length(x), most, inverse_temperature, weights.data());
        return weights;
      },
      "level"_a, "x"_a, "most"_a, "inverse_temperature"_a, "The weight of each of x f32 [n] ≤ most.");
  m.def(
      "vocab_at_least",
      [](const std::string& level, const Row& x, float threshold) {
        std::vector<int32_t> positions(x.shape(0));
        positions.resize(
            static_cast<size_t>(kernel_table(level).vocab_at_least(x.data(), length(x), threshold, positions.data())));
        return positions;
      },
      "level"_a, "x"_a, "threshold"_a, "The positions of x f32 [n] that are at least `threshold`, rising.");
}

}  // namespace precast
