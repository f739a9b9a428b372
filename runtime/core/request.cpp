#include "runtime/core/request.h"

#include <algorithm>
#include <random>
#include <sstream>

#include "runtime/core/utf8.h"

namespace precast {
namespace {

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw RequestError(text.str());
}

void check_prompt(const std::vector<TokenId>& prompt, const ModelLimits& limits) {
  if (prompt.empty()) refuse("the prompt is empty; give at least one token");
  if (prompt.size() >= static_cast<size_t>(limits.max_seq_len)) {
    refuse("the prompt has ", prompt.size(), " tokens, and this engine holds ", limits.max_seq_len,
           " of prompt and output together; shorten the prompt or build with a larger --max-seq-len");
  }
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= limits.vocab_size) {
      refuse("token ", i, " of the prompt is ", prompt[i], "; ids of this engine go from 0 to ", limits.vocab_size - 1);
    }
  }
}

// The comparisons are written so that NaN fails them.
void check_numbers(const SamplingParams& p) {
  if (!(p.temperature >= 0 && p.temperature <= kMaxTemperature)) {
    refuse("temperature is ", p.temperature, "; it must be from 0 (greedy) to ", kMaxTemperature);
  }
  if (p.top_k < 0) refuse("top_k is ", p.top_k, "; it must be at least 1, or 0 for all tokens");
  if (!(p.top_p > 0 && p.top_p <= 1)) refuse("top_p is ", p.top_p, "; it must be above 0 and at most 1");
  if (!(p.min_p >= 0 && p.min_p <= 1)) refuse("min_p is ", p.min_p, "; it must be from 0 to 1");
  if (p.logprobs && (*p.logprobs < 0 || *p.logprobs > kMaxLogprobs)) {
    refuse("logprobs is ", *p.logprobs, "; it must be from 0 to ", kMaxLogprobs);
  }
  if (p.max_tokens && *p.max_tokens < 0) refuse("max_tokens is ", *p.max_tokens, "; it must be at least 0");
  if (p.min_tokens < 0) refuse("min_tokens is ", p.min_tokens, "; it must be at least 0");
  if (p.max_tokens && p.min_tokens > *p.max_tokens) {
    refuse("min_tokens is ", p.min_tokens, " and max_tokens ", *p.max_tokens, "; min_tokens must not be larger");
  }
}

void check_stop_strings(const std::vector<std::string>& stops) {
  if (stops.size() > static_cast<size_t>(kMaxStopStrings)) {
    refuse("there are ", stops.size(), " stop strings; at most ", kMaxStopStrings, " are allowed");
  }
  for (const std::string& stop : stops) {
    if (stop.empty()) refuse("a stop string is empty; remove it");
    if (stop.size() > static_cast<size_t>(kMaxStopStringBytes)) {
      refuse("a stop string has ", stop.size(), " bytes; at most ", kMaxStopStringBytes, " are allowed");
    }
    if (!is_utf8(stop)) refuse("a stop string is not valid UTF-8");
  }
}

void check_against_engine(const SamplingParams& p, const ModelLimits& limits, bool has_text) {
  for (TokenId id : p.stop_token_ids) {
    if (id < 0 || id >= limits.vocab_size) {
      refuse("stop_token_ids has ", id, "; ids of this engine go from 0 to ", limits.vocab_size - 1);
    }
  }
  if (!p.stop.empty() && !has_text) {
    refuse("this engine has no tokenizer, and stop strings need one; use stop_token_ids");
  }
}

}  // namespace

void check_params(const SamplingParams& params) {
  check_numbers(params);
  check_stop_strings(params.stop);
}

int32_t pages_to_completion(int32_t max_length, int32_t page_tokens) {
  return (max_length - 1 + page_tokens - 1) / page_tokens;
}

int32_t check_request(const std::vector<TokenId>& prompt, const SamplingParams& params, const ModelLimits& limits,
                      int32_t num_pages, bool has_text) {
  check_prompt(prompt, limits);
  check_params(params);
  check_against_engine(params, limits, has_text);
  const auto length = static_cast<int64_t>(prompt.size());
  int64_t max_length = limits.max_seq_len;
  if (params.max_tokens) {
    max_length = std::min<int64_t>(max_length, length + *params.max_tokens);
  } else {
    const int64_t pool = int64_t{num_pages} * limits.page_tokens + 1;
    max_length = std::min(max_length, std::max(pool, length + 1));
  }
  if (length + params.min_tokens > max_length) {
    refuse("min_tokens is ", params.min_tokens, ", and after a prompt of ", length, " tokens there is room for ",
           max_length - length);
  }
  const int32_t pages = pages_to_completion(static_cast<int32_t>(max_length), limits.page_tokens);
  if (max_length > length && pages > num_pages) {
    refuse("the request needs ", pages, " KV pages of ", limits.page_tokens, " tokens to completion, and the pool has ",
           num_pages, "; ask for fewer tokens or give the engine a larger --kv-cache-memory");
  }
  return static_cast<int32_t>(max_length);
}

uint64_t random_seed() {
  // random_device reads the kernel's generator; one object a thread, because it holds an open file.
  static thread_local std::random_device device;
  return (uint64_t{device()} << 21) ^ device();
}

}  // namespace precast
