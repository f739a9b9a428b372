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
  Open request{std::vector<uint64_t>(static_cast<size_t>(num_outputs)), prompt_tokens, seed};
  const std::lock_guard lock(mutex_);
  open_.emplace(id, std::move(request));
}

void Outbox::put(std::vector<OutputDelta>& deltas) {
  if (deltas.empty()) return;
  const std::lock_guard lock(mutex_);
  try {
    make_room(deltas_, deltas.size());
    for (OutputDelta& delta : deltas) put(delta);
  } catch (...) {
    deltas.clear();
    throw;
  }
  deltas.clear();
  set_readable(true);
}

void Outbox::put(OutputDelta& delta) {
  const auto request = open_.find(delta.id);
  PRECAST_CHECK(request != open_.end());
  uint64_t& newest = request->second.newest[static_cast<size_t>(delta.index)];
  const bool ends = delta.finish_reason != FinishReason::none, ends_request = delta.request_finished;
  PRECAST_CHECK(newest != kFinished);
  // A request's last delta stays behind those of its other outputs.
  if (newest > taken_ && !(ends_request && request->second.newest.size() > 1)) {
    append_delta(deltas_[newest - taken_ - 1], std::move(delta));
  } else {
    deltas_.push_back(std::move(delta));
    newest = taken_ + deltas_.size();
  }
  if (ends) newest = kFinished;
  if (ends_request) open_.erase(request);
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
  taken_ += taken.size();
  set_readable(!deltas_.empty());
  return taken;
}

// Ends every output that is open.
void Outbox::fail_open() {
  while (!open_.empty()) {
    const auto request = open_.begin();
    std::vector<uint64_t>& newest = request->second.newest;
    for (size_t index = 0; index < newest.size(); ++index) {
      if (newest[index] == kFinished) continue;
      OutputDelta delta;
      delta.id = request->first;
      delta.index = static_cast<int32_t>(index);
      delta.finish_reason = FinishReason::error;
      delta.error = error_;
      delta.prompt_tokens = request->second.prompt_tokens;
      delta.seed = request->second.seed;
      delta.request_finished = std::all_of(newest.begin() + static_cast<std::ptrdiff_t>(index) + 1, newest.end(),
                                           [](uint64_t number) { return number == kFinished; });
      deltas_.push_back(std::move(delta));
      newest[index] = kFinished;
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
