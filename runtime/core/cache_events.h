// What the prefix cache has gained and lost, for who routes requests to the engine that holds their prefix.
#pragma once
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/core.h"

namespace precast {

struct CacheEvent {
  enum class Kind : uint8_t { stored, removed };
  Kind kind;
  uint64_t node;                // never used again for another
  uint64_t parent = 0;          // stored: the node of the page before; 0: none, it is the first
  std::string key;              // stored: see cache_key.h
  std::vector<TokenId> tokens;  // stored: of this page alone
};

// The last `capacity` events; older ones are dropped and counted.
class CacheEvents {
 public:
  explicit CacheEvents(size_t capacity) : capacity_(capacity) {}
  bool wanted() const { return capacity_ > 0; }
  bool empty() const { return events_.empty() && lost_ == 0; }

  void push(CacheEvent&& event) {
    if (!wanted()) return;
    if (events_.size() == capacity_) {
      events_.pop_front();
      ++lost_;
    }
    events_.push_back(std::move(event));
  }
  // Adds what another ring holds behind this one's, and empties that.
  void take_from(CacheEvents& other) {
    lost_ += std::exchange(other.lost_, 0);
    for (CacheEvent& event : other.events_) push(std::move(event));
    other.events_.clear();
  }
  // Empties the ring into `events`, oldest first; returns how many were lost before them.
  uint64_t take(std::vector<CacheEvent>& events) {
    events.assign(std::make_move_iterator(events_.begin()), std::make_move_iterator(events_.end()));
    events_.clear();
    return std::exchange(lost_, 0);
  }

 private:
  size_t capacity_;
  std::deque<CacheEvent> events_;
  uint64_t lost_ = 0;
};

}  // namespace precast
