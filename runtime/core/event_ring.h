// What happened, for somebody who looks now and then.
#pragma once
#include <deque>
#include <iterator>
#include <utility>
#include <vector>

namespace precast {

// The last `capacity` events; older ones are dropped and counted.
template <typename Event>
class EventRing {
 public:
  explicit EventRing(size_t capacity) : capacity_(capacity) {}
  bool wanted() const { return capacity_ > 0; }
  bool empty() const { return events_.empty() && lost_ == 0; }

  void push(Event&& event) {
    if (!wanted()) return;
    if (events_.size() == capacity_) {
      events_.pop_front();
      ++lost_;
    }
    events_.push_back(std::move(event));
  }
  // Adds what another ring holds behind this one's, and empties that.
  void take_from(EventRing& other) {
    lost_ += std::exchange(other.lost_, 0);
    for (Event& event : other.events_) push(std::move(event));
    other.events_.clear();
  }
  // Empties the ring into `events`, oldest first; returns how many were lost before them.
  uint64_t take(std::vector<Event>& events) {
    events.assign(std::make_move_iterator(events_.begin()), std::make_move_iterator(events_.end()));
    events_.clear();
    return std::exchange(lost_, 0);
  }

 private:
  size_t capacity_;
  std::deque<Event> events_;
  uint64_t lost_ = 0;
};

}  // namespace precast
