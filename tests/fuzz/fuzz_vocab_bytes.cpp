// The vocab_bytes section: refused, or read inside its bytes, also by the detokenizer.
#include <memory>
#include <string>

#include "runtime/core/detokenizer.h"
#include "runtime/core/utf8.h"
#include "runtime/core/vocab_bytes.h"
#include "tests/fuzz/fuzzer.h"

namespace precast {
namespace {

// All that goes out, together, is valid UTF-8.
void detokenize(const std::shared_ptr<const VocabBytes>& vocab) {
  Detokenizer detokenizer(vocab, {.stop = {"stop", "\xE4\xBD\xA0"}, .skip_special_tokens = false, .at_start = true});
  std::string text;
  for (TokenId id = 0; id < vocab->size() && detokenizer.push(id) < 0; ++id) detokenizer.release(false, text);
  detokenizer.release(true, text);
  expect(is_utf8(text));
}

void read_all(const std::shared_ptr<const VocabBytes>& vocab, size_t size) {
  size_t bytes = 0;
  for (TokenId id = -1; id <= vocab->size(); ++id) {
    for (const char c : vocab->bytes(id)) bytes += c != 0 || id >= 0;
    bytes += vocab->is_special(id);
  }
  expect(bytes <= size);
}

}  // namespace
}  // namespace precast

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace precast;
  try {
    const auto vocab = std::make_shared<const VocabBytes>(std::span(data, size), nullptr);
    read_all(vocab, size);
    detokenize(vocab);
  } catch (const EngineError&) {
  }
  return 0;
}
