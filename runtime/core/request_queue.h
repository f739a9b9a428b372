// Who waits, and in which order they are considered: the order of requests and the bound on overtaking.
#pragma once
#include <vector>

#include "runtime/core/core.h"
#include "runtime/core/kv_cache.h"

namespace precast {

enum class RequestOrder : uint8_t {
  fcfs,         // by arrival
  priority,     // by Sequence::priority, larger first; then by arrival
  cache_aware,  // the most cached tokens first; then by arrival
};

// A sequence is overtaken when one that arrived later is admitted before it. After max_overtakes times it is *urgent*:
// it stands before all that are not, and nobody is admitted while it waits. A paused sequence is urgent at once. With
// max_overtakes 0 everybody is: the order is that of arrival, whatever RequestOrder says.
class RequestQueue {
 public:
  RequestQueue(RequestOrder order, int32_t max_overtakes) : order_(order), max_overtakes_(max_overtakes) {}

  void add(Sequence* sequence);     // a new one
  void put_back(Sequence* paused);  // one that was admitted before
  void remove(Sequence* sequence);  // cancelled
  // Removes an admitted sequence and counts whom it overtook; true when one of those has become urgent by it.
  bool admitted(Sequence* sequence);

  bool is_urgent(const Sequence& s) const { return s.num_pauses > 0 || s.num_overtaken >= max_overtakes_; }
  // Who is to be considered for admission, best first: the urgent ones (paused ones by their start, then by arrival),
  // then at most kLookahead others.
  void candidates(const KvCache& cache, std::vector<Sequence*>& out) const;

  size_t size() const { return paused_.size() + waiting_.size(); }
  bool empty() const { return size() == 0; }
  void append_all(std::vector<Sequence*>& out) const;

  static constexpr size_t kLookahead = 32;  // so that a step's cost does not grow with the queue

 private:
  RequestOrder order_;
  int32_t max_overtakes_;
  uint64_t arrivals_ = 0;
  std::vector<Sequence*> paused_;   // by start
  std::vector<Sequence*> waiting_;  // by arrival
};

}  // namespace precast
