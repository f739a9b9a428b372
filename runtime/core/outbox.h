// What requests have put out, until somebody takes it; and the promise that each of their outputs ends exactly once.
//
// Memory is bounded however late the reader is: what an output adds while its delta before still waits is merged with
// that. So there is at most one delta for each output, and one more for a request of several, with the tokens that they
// tell. When the engine fails, the last deltas are made by who takes them, so that they cannot be lost for want of
// memory.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/core/core.h"

namespace precast {

// Adds what a later delta of the same output says. Throws std::bad_alloc, and neither has changed.
void append_delta(OutputDelta& delta, OutputDelta&& later);

// Thread-safe.
class Outbox {
 public:
  Outbox();  // throws std::system_error
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // From now on exactly one delta with a finish reason comes for each output. Throws std::bad_alloc, and nothing has
  // changed.
  void open(RequestId id, int32_t num_outputs, int32_t prompt_tokens, uint64_t seed);
  // Takes deltas of open requests and empties the vector. Throws std::bad_alloc: some have been taken then, and the
  // others are lost.
  void put(std::vector<OutputDelta>& deltas);
  // The end: nothing is put any more, and who is open ends with this error.
  void fail(const std::string& error) noexcept;

  // Readable while poll would return something. Owned by the outbox.
  int fileno() const { return event_; }
  // At most `max` deltas (0: all), oldest first; never blocks. Throws std::bad_alloc, and nothing is lost.
  std::vector<OutputDelta> poll(size_t max);

 private:
  struct Open {
    std::vector<bool> finished;  // of each output
    int32_t prompt_tokens;
    uint64_t seed;
  };

  const OutputDelta& merge(OutputDelta&& delta);
  void note_end(const OutputDelta& delta);
  void fail_open();
  void set_readable(bool readable) noexcept;

  int event_;
  std::mutex mutex_;
  std::vector<OutputDelta> deltas_;
  // Made only when the reader is late: where in deltas_ an output's newest is, of the first num_indexed_ deltas.
  std::map<std::pair<RequestId, int32_t>, size_t> newest_;
  size_t num_indexed_ = 0;
  std::unordered_map<RequestId, Open> open_;
  bool failed_ = false;
  std::string error_;
  bool readable_ = false;  // what event_ says
};

}  // namespace precast
