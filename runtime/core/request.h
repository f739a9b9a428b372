// What may enter. All limits are checked here, at enqueue, so that a bad request is its sender's error alone.
#pragma once
#include "runtime/core/core.h"

namespace precast {

inline constexpr double kGreedyTemperature = 1e-5;  // below: greedy
inline constexpr double kMaxTemperature = 1000;     // its inverse and any logit stay finite
inline constexpr int32_t kMaxLogprobs = 64;
inline constexpr int32_t kMaxSequences = 128;  // n, best_of
inline constexpr double kMaxPenalty = 2;       // presence, frequency: as OpenAI's API has it
inline constexpr double kMaxRepetitionPenalty = 1000;
inline constexpr double kMaxLogitBias = 100;
inline constexpr int32_t kMaxBadWords = 1024;
inline constexpr int32_t kMaxBadWordTokens = 256;
inline constexpr int32_t kMaxStopStrings = 64;
inline constexpr int32_t kMaxStopStringBytes = 1024;

// Checks what does not depend on an engine. Throws RequestError, one sentence: a value that is not a number or out of
// range, values that contradict each other.
void check_params(const SamplingParams& params);

inline constexpr int32_t kMaxCachePriority = 100;
inline constexpr size_t kMaxCacheSaltBytes = 1024;

// Throws RequestError for a cache_priority outside 0 … kMaxCachePriority, or a cache_salt that is too long.
void check_options(const RequestOptions& options);

// Checks a prompt and its parameters against an engine whose pool has num_pages pages; has_text: the engine carries the
// bytes of its vocabulary. Includes check_params. Returns the most tokens of prompt and output together: a max_tokens
// beyond max_seq_len ends there with `length`. Throws RequestError, one sentence each: an empty prompt, a prompt of
// max_seq_len tokens or more, a token id out of range, a value that is not a number or out of range, a request that the
// pool can never hold.
int32_t check_request(const std::vector<TokenId>& prompt, const SamplingParams& params, const ModelLimits& limits,
                      int32_t num_pages, bool has_text);

// Pages that a sequence of max_length tokens needs to completion: its last token is never run.
int32_t pages_to_completion(int32_t max_length, int32_t page_tokens);

// A seed for a request that names none; below 2^53, so that it survives JSON.
uint64_t random_seed();

}  // namespace precast
