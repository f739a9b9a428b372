#include "runtime/core/prefixes.h"

#include <algorithm>
#include <string>

#include "runtime/core/byte_reader.h"
#include "runtime/core/cache_key.h"

namespace precast {

namespace {

constexpr const char* kNoRoom =
    "the KV pool does not hold the engine's prefixes and a request; give it more memory (--kv-cache-memory)";
constexpr uint32_t kMaxPrefixes = 1024;
constexpr size_t kPageAlignment = 4096;  // of each group's pages in the section, so that they can be mapped

// How many pages of the last prompt none before it has: pages with the same tokens up to their end are one.
int32_t count_new_pages(const std::vector<std::vector<TokenId>>& prompts, size_t page_tokens) {
  const std::vector<TokenId>& last = prompts.back();
  size_t known = 0;
  for (size_t i = 0; i + 1 < prompts.size(); ++i) {
    const auto common = std::ranges::mismatch(prompts[i], last).in2 - last.begin();
    known = std::max(known, static_cast<size_t>(common) / page_tokens);
  }
  return static_cast<int32_t>(last.size() / page_tokens - known);
}

std::vector<TokenId> read_prompt(ByteReader& reader, const ModelLimits& limits) {
  const auto length = reader.number<uint32_t>();
  if (length == 0 || length % static_cast<uint32_t>(limits.page_tokens) != 0 ||
      length >= static_cast<uint32_t>(limits.max_seq_len)) {
    reader.fail("a prefix is not of whole pages, or as long as max_seq_len");
  }
  if (length > reader.left() / 4) reader.fail("it ends early");
  std::vector<TokenId> prompt(length);
  for (TokenId& token : prompt) {
    token = reader.number<int32_t>();
    if (token < 0 || token >= limits.vocab_size) reader.fail("a prefix has a token outside the vocabulary");
  }
  return prompt;
}

}  // namespace

Prefixes read_prefixes(std::span<const uint8_t> section, const ModelLimits& limits) {
  ByteReader reader(section, "section prefixes");
  Prefixes prefixes;
  const auto count = reader.number<uint32_t>();
  if (count > kMaxPrefixes) reader.fail("it has more than 1,024 prefixes");
  for (uint32_t i = 0; i < count; ++i) {
    prefixes.prompts.push_back(read_prompt(reader, limits));
    prefixes.num_pages += count_new_pages(prefixes.prompts, static_cast<size_t>(limits.page_tokens));
  }
  size_t at = section.size() - reader.left();
  for (const KvGroup& group : limits.groups) {
    at = (at + kPageAlignment - 1) / kPageAlignment * kPageAlignment;
    const size_t bytes = static_cast<size_t>(group.page_bytes) * static_cast<size_t>(prefixes.num_pages);
    if (at > section.size() || bytes > section.size() - at) reader.fail("it ends early");
    prefixes.pages.push_back(section.subspan(at, bytes));
    at += bytes;
  }
  if (at != section.size()) reader.fail("bytes are left over");
  return prefixes;
}

void load_prefixes(const Prefixes& prefixes, KvCache& cache, Backend& backend) {
  const ModelLimits& limits = backend.limits();
  const std::string key = shared_cache_key(std::nullopt);
  std::vector<PageLoad> loads;
  std::vector<PageCopy> copies;
  int32_t next = 0;
  for (const std::vector<TokenId>& prompt : prefixes.prompts) {
    const auto length = static_cast<int32_t>(prompt.size());
    Sequence sequence;
    sequence.cache_key = key;
    sequence.tokens = prompt;
    sequence.tokens.push_back(0);  // a sequence has a token that is not computed
    sequence.num_prompt = sequence.max_length = length + 1;
    if (!cache.admit(sequence, length + 1)) throw EngineError(kNoRoom);
    sequence.state = SequenceState::prefill;
    // A page at a time: this is the order of the section, and a window may be shorter than the prefix.
    const int32_t known = sequence.num_computed / limits.page_tokens;
    for (int32_t n = (known + 1) * limits.page_tokens; n <= length; n += limits.page_tokens) {
      cache.extend(sequence, n);
      for (size_t g = 0; g < limits.groups.size(); ++g) {
        const auto bytes = static_cast<size_t>(limits.groups[g].page_bytes);
        loads.push_back({static_cast<int32_t>(g),
                         sequence.tables[g].pages[static_cast<size_t>(n / limits.page_tokens - 1)],
                         prefixes.pages[g].subspan(static_cast<size_t>(next) * bytes, bytes)});
      }
      ++next;
      cache.computed(sequence, n);
    }
    cache.release(sequence);
    copies.clear();
    cache.take_copies(copies);  // of a page in part: all of it is loaded
    if (cache.pin(key, prompt) != length) throw EngineError(kNoRoom);
  }
  backend.load_pages(loads);
}

}  // namespace precast
