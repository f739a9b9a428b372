#include "runtime/core/output.h"

#include <algorithm>
#include <utility>

namespace precast {
namespace {

DetokenizerOptions detokenizer_options(const Request& request, const VocabBytes* vocab) {
  DetokenizerOptions options;
  options.stop = request.params.stop;
  options.include_stop = request.params.include_stop_str_in_output;
  options.min_tokens = request.params.min_tokens;
  options.skip_special_tokens = request.params.skip_special_tokens;
  // The output goes on where the prompt's text ends; only behind a prompt without text does it begin a text.
  options.at_start = vocab != nullptr && std::ranges::all_of(request.prompt, [&](TokenId token) {
                       return vocab->is_special(token) || vocab->bytes(token).empty();
                     });
  return options;
}

std::vector<TokenId> stop_tokens(const SamplingParams& params, std::span<const TokenId> eos) {
  std::vector<TokenId> tokens = params.stop_token_ids;
  if (!params.ignore_eos) tokens.insert(tokens.end(), eos.begin(), eos.end());
  return tokens;
}

template <typename T>
void move_front(std::vector<T>& from, size_t count, std::vector<T>& to) {
  const auto end = from.begin() + static_cast<std::ptrdiff_t>(std::min(count, from.size()));
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(end));
  from.erase(from.begin(), end);
}

double seconds(Clock::time_point from, Clock::time_point to) {
  return to < from ? 0 : std::chrono::duration<double>(to - from).count();
}

}  // namespace

Output::Output(const Request& request, int32_t index, std::span<const TokenId> eos,
               std::shared_ptr<const VocabBytes> vocab)
    : id_(request.id),
      index_(index),
      params_(request.params),
      prompt_tokens_(static_cast<int32_t>(request.prompt.size())),
      max_tokens_(request.max_length - prompt_tokens_),
      stop_tokens_(stop_tokens(request.params, eos)),
      processors_(request.params, request.prompt, stop_tokens_),
      vocab_(std::move(vocab)),
      detokenizer_(vocab_, detokenizer_options(request, vocab_.get())),
      enqueued_(request.enqueued) {
  if (params_.echo) echo_ = request.prompt;
}

void Output::set_prompt_logprobs(std::shared_ptr<const std::vector<TokenLogprobs>> logprobs) {
  prompt_logprobs_ = std::move(logprobs);
}

void Output::push(Sample&& sample, Clock::time_point now) {
  const Clock::time_point before = std::exchange(last_token_, now);
  if (++sampled_ == 1) first_token_ = last_token_;
  const double latency = seconds(sampled_ == 1 ? enqueued_ : before, last_token_);
  cumulative_logprob_ += sample.logprobs.logprob;
  if (std::ranges::find(stop_tokens_, sample.token) != stop_tokens_.end()) {
    stop_token_ = sample.token;
    if (params_.include_stop_str_in_output) keep(std::move(sample), latency);
    return finish(FinishReason::stop);
  }
  if (const int stop = keep(std::move(sample), latency); stop >= 0) {
    stop_string_ = params_.stop[static_cast<size_t>(stop)];
    return finish(FinishReason::stop);
  }
  if (sampled_ == max_tokens_) finish(FinishReason::length);
}

// Makes a token part of the output. Returns the index of the stop string that it completes, or −1.
int Output::keep(Sample&& sample, double latency_seconds) {
  processors_.push(sample.token);
  tokens_.push_back(sample.token);
  token_latencies_.push_back(latency_seconds);
  if (params_.logprobs) logprobs_.push_back(std::move(sample.logprobs));
  return detokenizer_.push(sample.token);
}

void Output::finish(FinishReason reason, std::string error) {
  reason_ = reason;
  error_ = std::move(error);
}

bool Output::take(Clock::time_point now, OutputDelta& delta) {
  const bool waits = !params_.stream || (params_.scored_prompt_tokens() && !prompt_logprobs_);
  if (!finished() && waits) return false;
  std::string text;
  const size_t tokens = detokenizer_.release(finished(), text);
  if (!finished() && tokens == 0 && text.empty()) return false;
  if (!begun_) begin(delta);
  delta.text += text;
  move_front(tokens_, tokens, delta.token_ids);
  move_front(logprobs_, tokens, delta.logprobs);
  move_front(token_latencies_, tokens, delta.token_latencies);
  fill(now, delta);
  return true;
}

// What goes out before everything else.
void Output::begin(OutputDelta& delta) {
  begun_ = true;
  delta.prompt_logprobs = prompt_logprobs_;
  if (!params_.echo) return;
  DetokenizerOptions options;
  options.skip_special_tokens = params_.skip_special_tokens;
  options.at_start = true;
  Detokenizer detokenizer(vocab_, std::move(options));
  for (const TokenId token : echo_) detokenizer.push(token);
  detokenizer.release(true, delta.text);
  delta.num_echoed = static_cast<int32_t>(echo_.size());
  delta.token_ids = std::exchange(echo_, {});
}

void Output::fill(Clock::time_point now, OutputDelta& delta) const {
  delta.id = id_;
  delta.index = index_;
  delta.cumulative_logprob = cumulative_logprob_;
  delta.finish_reason = reason_;
  delta.error = error_;
  delta.stop_string = stop_string_;
  delta.stop_token = stop_token_;
  delta.prompt_tokens = prompt_tokens_;
  delta.seed = *params_.seed;
  delta.queue_seconds = seconds(enqueued_, admitted_);
  delta.first_token_seconds = seconds(enqueued_, first_token_);
  delta.total_seconds = seconds(enqueued_, now);
}

}  // namespace precast
