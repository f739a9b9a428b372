#include "runtime/core/outbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <system_error>
#include <utility>

#include "runtime/core/check.h"

namespace precast {
namespace {

// Room for as many more; what follows cannot throw then.
template <typename T>
void make_room(T& sequence, size_t more) {
  const size_t wanted = sequence.size() + more;
  if (wanted > sequence.capacity()) sequence.reserve(std::max(wanted, 2 * sequence.capacity()));
}

template <typename T>
void move_behind(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

void append_delta(OutputDelta& delta, OutputDelta&& later) {
  make_room(delta.text, later.text.size());
  make_room(delta.token_ids, later.token_ids.size());
  make_room(delta.logprobs, later.logprobs.size());
  make_room(delta.token_latencies, later.token_latencies.size());
  delta.text += later.text;
  move_behind(delta.token_ids, later.token_ids);
  move_behind(delta.logprobs, later.logprobs);
  move_behind(delta.token_latencies, later.token_latencies);
  // All else is what the later one says of the output as a whole, or what the first one says of the prompt.
  later.text = std::move(delta.text);
  later.token_ids = std::move(delta.token_ids);
  later.logprobs = std::move(delta.logprobs);
  later.token_latencies = std::move(delta.token_latencies);
  later.prompt_logprobs = std::move(delta.prompt_logprobs);
  later.num_echoed = delta.num_echoed;
  delta = std::move(later);
}

Outbox::Outbox() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (event_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

Outbox::~Outbox() { ::close(event_); }

void Outbox::open(RequestId id, int32_t num_outputs, int32_t prompt_tokens, uint64_t seed) {
  Open request{std::vector<bool>(static_cast<size_t>(num_outputs)), prompt_tokens, seed};
  const std::lock_guard lock(mutex_);
  open_.emplace(id, std::move(request));
}

void Outbox::put(std::vector<OutputDelta>& deltas) {
  if (deltas.empty()) return;
  const std::lock_guard lock(mutex_);
  if (deltas_.empty()) {
    deltas_.swap(deltas);
    for (const OutputDelta& delta : deltas_) note_end(delta);
  } else {
    try {
      make_room(deltas_, deltas.size());
      for (OutputDelta& delta : deltas) note_end(merge(std::move(delta)));
    } catch (...) {
      deltas.clear();
      throw;
    }
    deltas.clear();
  }
  set_readable(true);
}

// Returns the delta that waits now. Throws std::bad_alloc, and nothing has changed.
const OutputDelta& Outbox::merge(OutputDelta&& delta) {
  for (; num_indexed_ < deltas_.size(); ++num_indexed_) {
    newest_[{deltas_[num_indexed_].id, deltas_[num_indexed_].index}] = num_indexed_;
  }
  const auto newest = newest_.find({delta.id, delta.index});
  // A request's last delta stays behind those of its other outputs.
  if (newest == newest_.end() || (delta.request_finished && open_.at(delta.id).finished.size() > 1)) {
    return deltas_.emplace_back(std::move(delta));
  }
  append_delta(deltas_[newest->second], std::move(delta));
  return deltas_[newest->second];
}

// So that a failure ends only what has not ended.
void Outbox::note_end(const OutputDelta& delta) {
  if (delta.finish_reason == FinishReason::none) return;
  const auto request = open_.find(delta.id);
  PRECAST_CHECK(request != open_.end() && !request->second.finished[static_cast<size_t>(delta.index)]);
  request->second.finished[static_cast<size_t>(delta.index)] = true;
  if (delta.request_finished) open_.erase(request);
}

void Outbox::fail(const std::string& error) noexcept {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  try {
    error_ = error;
  } catch (const std::bad_alloc&) {
    error_ = "out of memory";  // short enough to need none
  }
  set_readable(!deltas_.empty() || !open_.empty());
}

std::vector<OutputDelta> Outbox::poll(size_t max) {
  const std::lock_guard lock(mutex_);
  if (failed_) fail_open();
  std::vector<OutputDelta> taken;
  if (max == 0 || max >= deltas_.size()) {
    taken.swap(deltas_);
  } else {
    const auto end = deltas_.begin() + static_cast<std::ptrdiff_t>(max);
    taken.assign(std::make_move_iterator(deltas_.begin()), std::make_move_iterator(end));
    deltas_.erase(deltas_.begin(), end);
  }
  newest_.clear();
  num_indexed_ = 0;
  set_readable(!deltas_.empty());
  return taken;
}

// Ends every output that is open.
void Outbox::fail_open() {
  while (!open_.empty()) {
    const auto request = open_.begin();
    std::vector<bool>& finished = request->second.finished;
    for (size_t index = 0; index < finished.size(); ++index) {
      if (finished[index]) continue;
      OutputDelta delta;
      delta.id = request->first;
      delta.index = static_cast<int32_t>(index);
      delta.finish_reason = FinishReason::error;
      delta.error = error_;
      delta.prompt_tokens = request->second.prompt_tokens;
      delta.seed = request->second.seed;
      delta.request_finished = std::ranges::count(finished, false) == 1;
      deltas_.push_back(std::move(delta));
      finished[index] = true;
    }
    open_.erase(request);
  }
}

void Outbox::set_readable(bool readable) noexcept {
  if (readable == readable_) return;
  readable_ = readable;
  uint64_t value = 1;
  // Neither can fail: the counter is 0 when it is written, and 1 when it is read.
  [[maybe_unused]] const ssize_t n =
      readable ? ::write(event_, &value, sizeof(value)) : ::read(event_, &value, sizeof(value));
}

}  // namespace precast
