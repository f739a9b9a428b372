#include "runtime/core/request.h"

#include <algorithm>
#include <random>
#include <sstream>
#include <utility>

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
  if (p.prompt_logprobs && (*p.prompt_logprobs < 0 || *p.prompt_logprobs > kMaxLogprobs)) {
    refuse("prompt_logprobs is ", *p.prompt_logprobs, "; it must be from 0 to ", kMaxLogprobs);
  }
  if (p.max_tokens && *p.max_tokens < 0) refuse("max_tokens is ", *p.max_tokens, "; it must be at least 0");
  if (p.min_tokens < 0) refuse("min_tokens is ", p.min_tokens, "; it must be at least 0");
  if (p.max_tokens && p.min_tokens > *p.max_tokens) {
    refuse("min_tokens is ", p.min_tokens, " and max_tokens ", *p.max_tokens, "; min_tokens must not be larger");
  }
}

void check_penalties(const SamplingParams& p) {
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= kMaxRepetitionPenalty)) {
    refuse("repetition_penalty is ", p.repetition_penalty, "; it must be above 0 (1: none) and at most ",
           kMaxRepetitionPenalty);
  }
  for (const auto& [name, value] :
       {std::pair{"presence_penalty", p.presence_penalty}, std::pair{"frequency_penalty", p.frequency_penalty}}) {
    if (!(value >= -kMaxPenalty && value <= kMaxPenalty)) {
      refuse(name, " is ", value, "; it must be from ", -kMaxPenalty, " to ", kMaxPenalty);
    }
  }
  for (const auto& [token, bias] : p.logit_bias) {
    if (!(bias >= -kMaxLogitBias && bias <= kMaxLogitBias)) {
      refuse("the logit_bias of token ", token, " is ", bias, "; it must be from ", -kMaxLogitBias, " to ",
             kMaxLogitBias);
    }
  }
  if (p.bad_words.size() > static_cast<size_t>(kMaxBadWords)) {
    refuse("bad_words has ", p.bad_words.size(), " token sequences; at most ", kMaxBadWords, " are allowed");
  }
  for (const auto& word : p.bad_words) {
    if (word.empty()) refuse("one of bad_words is empty; remove it");
    if (word.size() > static_cast<size_t>(kMaxBadWordTokens)) {
      refuse("one of bad_words has ", word.size(), " tokens; at most ", kMaxBadWordTokens, " are allowed");
    }
  }
}

void check_sequences(const SamplingParams& p) {
  if (p.n < 1 || p.n > kMaxSequences) refuse("n is ", p.n, "; it must be from 1 to ", kMaxSequences);
  if (p.best_of && (*p.best_of < p.n || *p.best_of > kMaxSequences)) {
    refuse("best_of is ", *p.best_of, " and n ", p.n, "; best_of must be from n to ", kMaxSequences);
  }
}

// Of values that a model's defaults may still complete, hence not in check_params.
void check_together(const SamplingParams& p) {
  if (p.num_sequences() > 1 && p.temperature < kGreedyTemperature) {
    refuse(p.n > 1 ? "n" : "best_of", " is ", p.n > 1 ? p.n : *p.best_of,
           " with a temperature of 0, where all sequences would be equal; give a temperature, or ask for one");
  }
  if (p.ranks_sequences() && p.stream) {
    refuse("best_of is ", *p.best_of, " and n ", p.n,
           "; which sequences are the best is known at the end, so that there is no stream");
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

void check_token(const char* where, TokenId id, const ModelLimits& limits) {
  if (id >= 0 && id < limits.vocab_size) return;
  refuse(where, " has ", id, "; ids of this engine go from 0 to ", limits.vocab_size - 1);
}

void check_against_engine(const SamplingParams& p, const ModelLimits& limits, bool has_text) {
  for (const TokenId id : p.stop_token_ids) check_token("stop_token_ids", id, limits);
  for (const auto& [id, bias] : p.logit_bias) check_token("logit_bias", id, limits);
  for (const auto& word : p.bad_words) {
    for (const TokenId id : word) check_token("bad_words", id, limits);
  }
  if (!p.stop.empty() && !has_text) {
    refuse("this engine has no tokenizer, and stop strings need one; use stop_token_ids");
  }
}

}  // namespace

void check_params(const SamplingParams& params) {
  check_numbers(params);
  check_penalties(params);
  check_sequences(params);
  check_stop_strings(params.stop);
}

void check_options(const RequestOptions& options) {
  if (options.cache_priority < 0 || options.cache_priority > kMaxCachePriority) {
    refuse("cache_priority is ", options.cache_priority, "; it must be from 0 to ", kMaxCachePriority);
  }
  if (options.timeout_seconds && !(*options.timeout_seconds >= 0)) {
    refuse("timeout is ", *options.timeout_seconds, "; it must be at least 0 seconds");
  }
  if (options.cache_salt && options.cache_salt->size() > kMaxCacheSaltBytes) {
    refuse("cache_salt has ", options.cache_salt->size(), " bytes; at most ", kMaxCacheSaltBytes, " are allowed");
  }
}

int32_t pages_to_completion(int32_t max_length, int32_t page_tokens) {
  return (max_length - 1 + page_tokens - 1) / page_tokens;
}

int32_t check_request(const std::vector<TokenId>& prompt, const SamplingParams& params, const ModelLimits& limits,
                      int32_t num_pages, bool has_text) {
  check_prompt(prompt, limits);
  check_params(params);
  check_together(params);
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
  const bool scores = params.scored_prompt_tokens() && length > 1;  // the whole prompt runs
  const int64_t run_length = scores ? std::max(max_length, length + 1) : max_length;
  const int32_t pages = pages_to_completion(static_cast<int32_t>(run_length), limits.page_tokens);
  if (run_length > length && pages > num_pages) {
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
