// Sampling parameters; and sampler and detokenizer alone, for the tests that drive them directly.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <span>
#include <utility>

#include "runtime/bindings/bindings.h"
#include "runtime/core/detokenizer.h"
#include "runtime/core/philox.h"
#include "runtime/core/request.h"
#include "runtime/core/sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace precast {
namespace {

void bind_params(nb::module_& m) {
  nb::class_<SamplingParams>(m, "SamplingParams",
                             "How tokens are chosen and when a request ends; see runtime/core/core.h.")
      .def(nb::init<>())
      .def_rw("max_tokens", &SamplingParams::max_tokens, nb::for_setter(nb::arg("value").none()))
      .def_rw("min_tokens", &SamplingParams::min_tokens)
      .def_rw("temperature", &SamplingParams::temperature)
      .def_rw("top_k", &SamplingParams::top_k)
      .def_rw("top_p", &SamplingParams::top_p)
      .def_rw("min_p", &SamplingParams::min_p)
      .def_rw("repetition_penalty", &SamplingParams::repetition_penalty)
      .def_rw("presence_penalty", &SamplingParams::presence_penalty)
      .def_rw("frequency_penalty", &SamplingParams::frequency_penalty)
      .def_rw("logit_bias", &SamplingParams::logit_bias)
      .def_rw("bad_words", &SamplingParams::bad_words)
      .def_rw("seed", &SamplingParams::seed, nb::for_setter(nb::arg("value").none()))
      .def_rw("stop", &SamplingParams::stop)
      .def_rw("stop_token_ids", &SamplingParams::stop_token_ids)
      .def_rw("include_stop_str_in_output", &SamplingParams::include_stop_str_in_output)
      .def_rw("ignore_eos", &SamplingParams::ignore_eos)
      .def_rw("skip_special_tokens", &SamplingParams::skip_special_tokens)
      .def_rw("logprobs", &SamplingParams::logprobs, nb::for_setter(nb::arg("value").none()))
      .def_rw("prompt_logprobs", &SamplingParams::prompt_logprobs, nb::for_setter(nb::arg("value").none()))
      .def_rw("echo", &SamplingParams::echo)
      .def_rw("n", &SamplingParams::n)
      .def_rw("best_of", &SamplingParams::best_of, nb::for_setter(nb::arg("value").none()))
      .def_rw("stream", &SamplingParams::stream)
      .def("check", &check_params, "Raises RequestError for values that no engine takes.");
}

std::shared_ptr<VocabBytes> vocab_from_bytes(const nb::bytes& section) {
  auto copy = std::make_shared<std::vector<uint8_t>>(reinterpret_cast<const uint8_t*>(section.data()),
                                                     reinterpret_cast<const uint8_t*>(section.data()) + section.size());
  return std::make_shared<VocabBytes>(std::span<const uint8_t>(*copy), copy);
}

void bind_text(nb::module_& m) {
  nb::class_<VocabBytes>(m, "VocabBytes", "The bytes of every token: an engine's vocab_bytes section.")
      .def_static("from_bytes", &vocab_from_bytes, "section"_a, "Raises EngineError when the section is damaged.")
      .def("__len__", &VocabBytes::size)
      .def(
          "token_bytes",
          [](const VocabBytes& v, TokenId id) { return nb::bytes(v.bytes(id).data(), v.bytes(id).size()); }, "id"_a,
          "A token's bytes; none for an id without a token.")
      .def("is_special", &VocabBytes::is_special, "id"_a);
  nb::class_<Detokenizer>(m, "Detokenizer", "Tokens to text as they come; see runtime/core/detokenizer.h.")
      .def(
          "__init__",
          [](Detokenizer* self, std::shared_ptr<VocabBytes> vocab, std::vector<std::string> stop, bool include_stop,
             int32_t min_tokens, bool skip_special_tokens, bool at_start) {
            new (self) Detokenizer(std::move(vocab),
                                   {std::move(stop), include_stop, min_tokens, skip_special_tokens, at_start});
          },
          "vocab"_a, nb::kw_only(), "stop"_a = std::vector<std::string>{}, "include_stop"_a = false, "min_tokens"_a = 0,
          "skip_special_tokens"_a = true, "at_start"_a = false)
      .def("push", &Detokenizer::push, "token"_a, "The index of the stop string that the token completes, or -1.")
      .def(
          "release",
          [](Detokenizer& d, bool final) {
            std::string text;
            const size_t tokens = d.release(final, text);
            return nb::make_tuple(text, tokens);
          },
          "final"_a, nb::sig("def release(self, final: bool) -> tuple[str, int]"),
          "(text, number of tokens) that can be given out.");
}

using Logits = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// `prompt`, `output` and `params` hold tokens of the vocabulary; the caller sees to that.
nb::tuple sample_row(const Logits& logits, const SamplingParams& params, uint64_t random,
                     const std::vector<TokenId>& prompt, const std::vector<TokenId>& output) {
  std::vector<float> row(logits.data(), logits.data() + logits.size());
  LogitsProcessors processors(params, prompt, params.stop_token_ids);
  for (const TokenId token : output) processors.push(token);
  Sample sample = Sampler(static_cast<int32_t>(row.size())).sample(row, params, random, processors);
  if (sample.error != nullptr) throw RequestError(sample.error);
  return nb::make_tuple(sample.token, sample.logprobs);
}

void bind_sampler(nb::module_& m) {
  m.def("random_bits", &random_bits, "seed"_a, "sequence_index"_a, "position"_a,
        "The 64 random bits of one position of a sequence: Philox4x32-10.");
  m.def("sample", &sample_row, "logits"_a, "params"_a, "random_bits"_a, "prompt"_a = std::vector<TokenId>{},
        "output"_a = std::vector<TokenId>{},
        nb::sig("def sample(logits: numpy.typing.NDArray[numpy.float32], params: SamplingParams, random_bits: int, "
                "prompt: Sequence[int] = (), output: Sequence[int] = ()) -> tuple[int, TokenLogprobs]"),
        "The token that is chosen from logits f32 [V] after tokens 0 … V − 1 of a prompt and an output, and its "
        "logprobs. Raises RequestError for NaN or infinite logits.");
}

}  // namespace

void bind_sampling(nb::module_& m) {
  bind_params(m);
  bind_text(m);
  bind_sampler(m);
}

}  // namespace precast
