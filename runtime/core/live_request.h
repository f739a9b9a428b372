// A request between enqueue and its last delta: the sequences that make its outputs, and in which order these leave.
//
// A stream's deltas leave as they come, each with the index of its output. Otherwise all outputs leave together when
// the last is finished: by index, or, when best_of asks for more sequences than n, the n of the highest cumulative
// logprob (equal ones: lower index first), best first.
#pragma once
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/core/core.h"
#include "runtime/core/output.h"

namespace precast {

class LiveRequest {
 public:
  struct Member {
    Sequence sequence;
    Output output;
  };

  // Makes the members; their sequences have id, index, tokens and lengths, and wait.
  LiveRequest(Request&& request, std::span<const TokenId> eos, std::shared_ptr<const VocabBytes> vocab);
  LiveRequest(const LiveRequest&) = delete;
  LiveRequest& operator=(const LiveRequest&) = delete;

  RequestId id() const { return members_.front().sequence.id; }
  // They stay where they are.
  std::span<Member> members() { return members_; }
  Member& member(const Sequence& sequence) { return members_[static_cast<size_t>(sequence.index)]; }
  // How many members must run, from the first on: none when no token is wanted, one when the prompt is scored alone.
  size_t num_running() const { return num_running_; }
  bool scores_only() const { return scores_only_; }
  Clock::time_point enqueued() const { return enqueued_; }
  Clock::time_point deadline() const { return deadline_; }  // max(): none
  // True when it was in the queue until now.
  bool leave_queue() { return std::exchange(queued_, false); }
  // What the member of index 0 learns of prompt token 1, 2, …
  void push_prompt_logprobs(TokenLogprobs&& logprobs);

  // Appends what can leave now that `member` has more. A member that is finished is taken once.
  void take(Member& member, Clock::time_point now, std::vector<OutputDelta>& deltas);
  // Every member is finished and taken.
  bool finished() const { return num_finished_ == members_.size(); }

 private:
  void rank(std::vector<OutputDelta>& deltas) const;
  void emit(OutputDelta&& delta, bool last, std::vector<OutputDelta>& deltas) const;

  bool stream_, ranks_, scores_only_;
  bool queued_ = true;
  Clock::time_point enqueued_;
  Clock::time_point deadline_ = Clock::time_point::max();
  int32_t n_;
  size_t num_running_ = 0, num_finished_ = 0;
  size_t num_prompt_logprobs_ = 0;  // wanted
  std::shared_ptr<std::vector<TokenLogprobs>> prompt_logprobs_;
  std::vector<Member> members_;
  std::vector<OutputDelta> held_;
};

}  // namespace precast
