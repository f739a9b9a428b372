#include "runtime/core/live_request.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace precast {

namespace {

constexpr double kLongestTimeout = 1e8;  // three years: what the clock can count

}  // namespace

LiveRequest::LiveRequest(Request&& request, std::span<const TokenId> eos, std::shared_ptr<const VocabBytes> vocab)
    : stream_(request.params.stream),
      ranks_(request.params.ranks_sequences()),
      enqueued_(request.enqueued),
      n_(request.params.n) {
  const auto num_prompt = static_cast<int32_t>(request.prompt.size());
  if (request.options.timeout_seconds) {
    const std::chrono::duration<double> timeout(std::min(*request.options.timeout_seconds, kLongestTimeout));
    deadline_ = request.enqueued + std::chrono::duration_cast<Clock::duration>(timeout);
  }
  if (request.params.scored_prompt_tokens()) {
    num_prompt_logprobs_ = request.prompt.size() - 1;
    prompt_logprobs_ = std::make_shared<std::vector<TokenLogprobs>>();
    prompt_logprobs_->reserve(num_prompt_logprobs_);
  }
  const bool generates = request.max_length > num_prompt;
  scores_only_ = !generates && num_prompt_logprobs_ > 0;
  const int32_t sequences = request.params.num_sequences();
  num_running_ = generates ? static_cast<size_t>(sequences) : scores_only_ ? 1 : 0;
  members_.reserve(static_cast<size_t>(sequences));
  for (int32_t index = 0; index < sequences; ++index) {
    Member& member = members_.emplace_back(Member{Sequence{}, Output(request, index, eos, vocab)});
    Sequence& sequence = member.sequence;
    sequence.id = request.id;
    sequence.index = index;
    sequence.request = this;
    sequence.num_prompt = num_prompt;
    // The row of the prompt's last token runs even if no token is sampled from it.
    sequence.max_length = std::max(request.max_length, num_prompt + 1);
    sequence.tokens = request.prompt;
    sequence.prompt_logits = index == 0 && num_prompt_logprobs_ > 0;
    if (prompt_logprobs_ && num_prompt_logprobs_ == 0) member.output.set_prompt_logprobs(prompt_logprobs_);
  }
}

void LiveRequest::push_prompt_logprobs(TokenLogprobs&& logprobs) {
  prompt_logprobs_->push_back(std::move(logprobs));
  if (prompt_logprobs_->size() < num_prompt_logprobs_) return;
  for (Member& member : members_) member.output.set_prompt_logprobs(prompt_logprobs_);
}

void LiveRequest::take(Member& member, Clock::time_point now, std::vector<OutputDelta>& deltas) {
  OutputDelta delta;
  if (member.output.finished()) ++num_finished_;
  if (!member.output.take(now, delta)) return;
  if (stream_) return emit(std::move(delta), finished(), deltas);
  held_.push_back(std::move(delta));
  if (!finished()) return;
  rank(held_);
  for (OutputDelta& held : held_) emit(std::move(held), &held == &held_.back(), deltas);
}

void LiveRequest::rank(std::vector<OutputDelta>& deltas) const {
  std::ranges::sort(deltas, {}, [this](const OutputDelta& delta) {
    const bool failed = delta.finish_reason == FinishReason::error;
    return std::tuple(ranks_ && failed, ranks_ ? -delta.cumulative_logprob : 0.0, delta.index);
  });
  if (!ranks_) return;
  deltas.resize(static_cast<size_t>(n_));
  for (size_t i = 0; i < deltas.size(); ++i) deltas[i].index = static_cast<int32_t>(i);
}

// Fills in what concerns the whole request.
void LiveRequest::emit(OutputDelta&& delta, bool last, std::vector<OutputDelta>& deltas) const {
  delta.request_finished = last;
  delta.cached_tokens = members_.front().sequence.num_cached;
  for (const Member& member : members_) {
    delta.completion_tokens += member.output.num_sampled();
    delta.num_preemptions += member.sequence.num_pauses;
  }
  deltas.push_back(std::move(delta));
}

}  // namespace precast
