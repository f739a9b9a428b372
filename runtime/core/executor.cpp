#include "runtime/core/executor.h"

#include <algorithm>
#include <new>
#include <utility>

#include "runtime/core/cache_key.h"
#include "runtime/core/check.h"
#include "runtime/core/philox.h"
#include "runtime/core/request.h"
#include "runtime/core/short_slices.h"

namespace precast {
namespace {

std::string fault(const char* what) noexcept {
  try {
    return *what != '\0' ? what : "unknown fault";
  } catch (...) {
    return "out of memory";  // short enough to need none
  }
}

// What fn() throws, in words; empty: nothing.
template <typename Fn>
std::string fault_of(const Fn& fn) {
  try {
    fn();
    return {};
  } catch (const std::bad_alloc&) {
    return fault("out of memory");
  } catch (const std::exception& e) {
    return fault(e.what());
  } catch (...) {
    return fault("");
  }
}

}  // namespace

// ---- any thread -----------------------------------------------------------------------------------------------------

Executor::Executor(std::shared_ptr<Backend> backend, ExecutorConfig config, std::shared_ptr<const VocabBytes> vocab)
    : limits_(backend->limits()),
      config_(std::move(config)),
      backend_(std::move(backend)),
      vocab_(std::move(vocab)),
      cache_(limits_, config_.num_pages, config_.kv_events),
      scheduler_(limits_, config_.scheduler, cache_),
      sampler_(limits_.vocab_size, backend_->num_threads()),
      recorder_(config_.iteration_stats),
      cache_events_(config_.kv_events),
      iteration_stats_(config_.iteration_stats) {
  if (config_.max_queued_requests < 0 || config_.max_queued_tokens < 0) {
    throw EngineError("max_queued_requests and max_queued_tokens must be at least 0 (no limit)");
  }
  for (const int32_t pages : config_.num_pages) {
    if (pages < 1) throw EngineError("the KV pool has no pages; give it more memory (--kv-cache-memory)");
  }
  for (TokenId id : config_.eos_token_ids) {
    if (id < 0 || id >= limits_.vocab_size) {
      throw EngineError("eos token " + std::to_string(id) + " is not in the engine's vocabulary of " +
                        std::to_string(limits_.vocab_size) + "; correct eos_token_id in generation_config.json");
    }
  }
  backend_->allocate_pages(config_.num_pages);
  if (config_.prefixes && config_.enable_prefix_caching) load_prefixes(*config_.prefixes, cache_, *backend_);
  max_pages_ = cache_.max_positions() / limits_.page_tokens;
  if (max_pages_ < 1)
    throw EngineError("the engine's prefixes fill the KV pool; give it more memory (--kv-cache-memory)");
  // Not initialized: rows that no step uses cost no memory.
  logits_ = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(limits_.max_logit_rows()) *
                                                    static_cast<size_t>(limits_.vocab_size));
  count_pages();
  shown_ = counters_;
  thread_ = std::thread(&Executor::loop, this);
}

Executor::~Executor() { close(false, 0); }

RequestId Executor::submit(std::vector<TokenId> prompt, SamplingParams params, RequestOptions options) {
  Request request;
  check_options(options);
  request.max_length = check_request(prompt, params, limits_, max_pages_, vocab_ != nullptr);
  request.prompt = std::move(prompt);
  request.params = std::move(params);
  request.options = std::move(options);
  if (!request.params.seed) request.params.seed = random_seed();
  request.enqueued = Clock::now();
  const RequestId id = request.id = next_id_++;
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  const int32_t outputs = request.params.n;
  const uint64_t seed = *request.params.seed;
  {
    const std::lock_guard lock(mutex_);
    refuse(tokens);
  }
  // Here, so that want of memory is this request's alone.
  std::unique_ptr<LiveRequest> live = make_live(std::move(request));
  const std::lock_guard lock(mutex_);
  refuse(tokens);
  inbox_.push_back(std::move(live));
  try {
    outbox_.open(id, outputs, static_cast<int32_t>(tokens), seed);
  } catch (...) {
    inbox_.pop_back();
    throw;
  }
  ++queued_requests_;
  queued_tokens_ += tokens;
  wake_.notify_one();
  return id;
}

std::unique_ptr<LiveRequest> Executor::make_live(Request&& request) const {
  const RequestId id = request.id;
  const RequestOptions options = request.options;
  auto live = std::make_unique<LiveRequest>(std::move(request), config_.eos_token_ids, vocab_);
  for (LiveRequest::Member& member : live->members()) {
    Sequence& sequence = member.sequence;
    sequence.priority = options.priority;
    sequence.cache_priority = options.cache_priority;
    if (config_.enable_prefix_caching) {
      sequence.cache_key = shared_cache_key(options.cache_salt);
    } else if (live->num_running() > 1) {
      sequence.cache_key = private_cache_key(id);
    }
  }
  return live;
}

// Throws when no request with so many tokens of prompt may enter now.
void Executor::refuse(int64_t prompt_tokens) const {
  if (!error_.empty()) throw RequestError("the engine has failed and takes no more requests: " + error_);
  if (closing_) throw RequestError("the engine is shut down and takes no more requests");
  if (config_.max_queued_requests > 0 && queued_requests_ >= config_.max_queued_requests) {
    throw QueueFullError("the queue is full: " + std::to_string(queued_requests_) +
                         " requests wait, which is max_queued_requests; try again later");
  }
  // A prompt that alone is longer is taken when nothing waits: else it would never be.
  if (config_.max_queued_tokens > 0 && queued_requests_ > 0 &&
      queued_tokens_ + prompt_tokens > config_.max_queued_tokens) {
    throw QueueFullError("the queue is full: prompts of " + std::to_string(queued_tokens_) + " tokens wait, and with " +
                         std::to_string(prompt_tokens) + " more they would pass max_queued_tokens (" +
                         std::to_string(config_.max_queued_tokens) + "); try again later");
  }
}

void Executor::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (loop_ended_) return;
  cancel_inbox_.push_back(id);
  wake_.notify_one();
}

void Executor::pause() {
  const std::lock_guard lock(mutex_);
  paused_ = true;
}

void Executor::resume() {
  const std::lock_guard lock(mutex_);
  paused_ = false;
  wake_.notify_one();
}

bool Executor::close(bool drain, double timeout_seconds) {
  const std::lock_guard close_lock(close_mutex_);
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    paused_ = false;
    if (!drain) abort_ = true;
    wake_.notify_one();
    const auto timeout = std::chrono::duration<double>(std::clamp(timeout_seconds, 0.0, 1e8));
    if (drain && !ended_.wait_for(lock, timeout, [this] { return loop_ended_; })) {
      abort_ = true;
      wake_.notify_one();
    }
  }
  if (thread_.joinable()) thread_.join();
  return !cut_short_;
}

ExecutorStats Executor::stats() const {
  const std::lock_guard lock(mutex_);
  ExecutorStats stats = shown_;
  stats.waiting += static_cast<int32_t>(inbox_.size());
  stats.queued_requests = queued_requests_;
  stats.queued_tokens = queued_tokens_;
  stats.alive = !closing_ && !loop_ended_;
  stats.paused = paused_;
  stats.error = error_;
  if (step_began_ != Clock::time_point{}) {
    stats.step_running_seconds = std::chrono::duration<double>(Clock::now() - step_began_).count();
  }
  return stats;
}

uint64_t Executor::kv_events(std::vector<CacheEvent>& events) {
  const std::lock_guard lock(mutex_);
  return cache_events_.take(events);
}

uint64_t Executor::iteration_stats(std::vector<IterationStats>& steps) {
  const std::lock_guard lock(mutex_);
  return iteration_stats_.take(steps);
}

// ---- the loop's thread ----------------------------------------------------------------------------------------------

void Executor::loop() {
  take_short_slices();  // it works in the pool's jobs too
  std::string error = fault_of([this] {
    while (intake()) step();
    cancel_all();
  });
  if (!error.empty()) fail(std::move(error));
  const std::lock_guard lock(mutex_);
  loop_ended_ = true;
  ended_.notify_all();
}

// Takes what has come in, and sleeps while there is nothing to do. False: the loop ends.
bool Executor::intake() {
  gone_.clear();
  {
    std::unique_lock lock(mutex_);
    step_began_ = {};
    const auto has_work = [this] {
      return abort_ || closing_ || !inbox_.empty() || !cancel_inbox_.empty() || (!paused_ && !scheduler_.empty());
    };
    if (deadlines_.empty()) {
      wake_.wait(lock, has_work);
    } else {  // only in a pause does this wait
      wake_.wait_until(lock, deadlines_.begin()->first, has_work);
    }
    if (abort_ || (closing_ && inbox_.empty() && scheduler_.empty())) return false;
    std::swap(requests_, inbox_);
    std::swap(cancels_, cancel_inbox_);
    // Read with the inboxes: what was asked before a resume is done before a step.
    may_step_ = !paused_;
    step_began_ = Clock::now();
    recorder_.began(step_began_);
    now_ = step_began_;
  }
  for (std::unique_ptr<LiveRequest>& request : requests_) enter(std::move(request));
  for (const RequestId id : cancels_) cancel_now(id);
  end_late();
  requests_.clear();
  cancels_.clear();
  return true;
}

void Executor::enter(std::unique_ptr<LiveRequest>&& request) {
  LiveRequest& live = *request;
  const RequestId id = live.id();
  live_.emplace(id, std::move(request));
  if (live.deadline() != Clock::time_point::max()) deadlines_.emplace(live.deadline(), id);
  if (live.num_running() == 0) return finish(live, FinishReason::length, {});
  for (LiveRequest::Member& member : live.members().first(live.num_running())) scheduler_.add(&member.sequence);
}

void Executor::cancel_now(RequestId id) {
  const auto found = live_.find(id);
  if (found != live_.end()) finish(*found->second, FinishReason::cancelled, {});
}

void Executor::end_late() {
  const Clock::time_point now = deadlines_.empty() ? Clock::time_point{} : Clock::now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    finish(*live_.at(deadlines_.begin()->second), FinishReason::timeout, {});
  }
}

// Counts a request out of the queue: it is admitted, or ends.
void Executor::leave_queue(LiveRequest& live) {
  if (!live.leave_queue()) return;
  ++left_requests_;
  left_tokens_ += live.members().front().sequence.num_prompt;
}

void Executor::step() {
  if (!may_step_) return publish();
  for (Sequence* sequence : scheduler_.admit()) {
    LiveRequest& live = *sequence->request;
    leave_queue(live);
    if (sequence->num_pauses > 0) continue;
    const auto now = Clock::now();
    live.member(*sequence).output.admitted(now);
    recorder_.admitted(*sequence, now - live.enqueued(), limits_.page_tokens);
  }
  if (scheduler_.schedule(batch_)) {
    const auto began = Clock::now();
    backend_->run(batch_, logits_.get());
    const auto model = Clock::now() - began;
    scheduler_.complete();
    ++counters_.steps;
    counters_.step_tokens += batch_.tokens.size();
    counters_.step_sequences += batch_.sequences.size();
    sample();
    recorder_.ran(batch_, model, scheduler_, cache_);
  } else {
    require(scheduler_.empty(), "there is a step while there are requests");
  }
  publish();
}

namespace {

// The model has driven all that follows a step out of the caches. So many rows' memory is on its way while one is
// worked on; of 64 rows this saves some 15 of 110 us (Zen 1).
constexpr size_t kRowsAhead = 4;

// The member that a sequence is the beginning of, and its request.
void prefetch(const Sequence& sequence) {
  constexpr size_t kLine = 64;
  __builtin_prefetch(sequence.request);
  const auto* memory = reinterpret_cast<const char*>(&sequence);
  for (size_t at = 0; at < sizeof(LiveRequest::Member); at += kLine) __builtin_prefetch(memory + at);
}

}  // namespace

void Executor::sample() {
  samples_.clear();
  float* logits = logits_.get();
  const std::span<const LogitRow> rows = scheduler_.logit_rows();
  for (size_t row = 0; row < rows.size(); ++row) {
    if (row + kRowsAhead < rows.size()) prefetch(*rows[row + kRowsAhead].sequence);
    const auto [sequence, position] = rows[row];
    const Output& output = sequence->request->member(*sequence).output;
    SampleTask& task = samples_.emplace_back();
    task.sequence = sequence;
    task.logits = {logits, static_cast<size_t>(limits_.vocab_size)};
    task.params = &output.params();
    if (position < sequence->length() - 1) {
      task.prompt_token = sequence->tokens[static_cast<size_t>(position) + 1];
      task.top = output.params().scored_prompt_tokens().value_or(0);
    } else {
      task.processors = &output.processors();
      task.random_bits = random_bits(*output.params().seed, static_cast<uint32_t>(sequence->index),
                                     static_cast<uint32_t>(sequence->length()));
    }
    logits += limits_.vocab_size;
  }
  sampler_.run(samples_, *backend_);
  now_ = Clock::now();
  deltas_.reserve(deltas_.size() + samples_.size());
  for (SampleTask& task : samples_) take_sample(task);
}

void Executor::take_sample(SampleTask& task) {
  LiveRequest& live = *task.sequence->request;
  LiveRequest::Member& member = live.member(*task.sequence);
  if (member.output.finished()) return;  // by an earlier row of the step
  const TokenId token = task.result.token;
  if (task.processors == nullptr) {
    if (task.result.error != nullptr) return finish(live, FinishReason::error, task.result.error);
    return live.push_prompt_logprobs(std::move(task.result.logprobs));
  }
  if (live.scores_only()) return finish(live, FinishReason::length, {});
  if (task.result.error != nullptr) {
    member.output.finish(FinishReason::error, task.result.error);
  } else {
    member.output.push(std::move(task.result), now_);
    if (!member.output.finished()) scheduler_.append(member.sequence, token);
  }
  deliver(live, member);
}

// Puts what is ready into this step's deltas. Returns whether the request has ended: `live` lives until the next intake
// then.
bool Executor::deliver(LiveRequest& live, LiveRequest::Member& member) {
  live.take(member, now_, deltas_);
  if (!member.output.finished()) return false;
  recorder_.completed();
  scheduler_.finish(member.sequence);
  if (!live.finished()) return false;
  ++counters_.finished;
  leave_queue(live);
  const RequestId id = member.sequence.id;
  if (live.deadline() != Clock::time_point::max()) deadlines_.erase({live.deadline(), id});
  const auto found = live_.find(id);
  gone_.push_back(std::move(found->second));
  live_.erase(found);
  if (!config_.enable_prefix_caching) cache_.forget(private_cache_key(id));
  return true;
}

// Ends what a request has not ended itself.
void Executor::finish(LiveRequest& live, FinishReason reason, const std::string& error) {
  for (LiveRequest::Member& member : live.members()) {
    if (member.output.finished()) continue;
    member.output.finish(reason, error);
    if (deliver(live, member)) return;
  }
}

// Makes this step's deltas and counters visible: one wake-up.
void Executor::publish() {
  counters_.waiting = scheduler_.num_waiting();
  counters_.running = scheduler_.num_running();
  counters_.pauses = scheduler_.num_pauses();
  count_pages();
  {
    const std::lock_guard lock(mutex_);
    shown_ = counters_;
    queued_requests_ -= std::exchange(left_requests_, 0);
    queued_tokens_ -= std::exchange(left_tokens_, 0);
    cache_events_.take_from(cache_.events());
    iteration_stats_.take_from(recorder_.ring());
  }
  outbox_.put(deltas_);
}

void Executor::count_pages() {
  counters_.num_pages = counters_.free_pages = counters_.cached_pages = counters_.available_pages = 0;
  for (int32_t g = 0; g < cache_.num_groups(); ++g) {
    counters_.num_pages += cache_.num_pages(g);
    counters_.free_pages += cache_.num_free(g);
    counters_.cached_pages += cache_.num_evictable(g);
    counters_.available_pages += cache_.num_available(g);
  }
}

// At a shutdown, which lets no more requests in.
void Executor::cancel_all() {
  {
    const std::lock_guard lock(mutex_);
    std::swap(requests_, inbox_);
    cut_short_ = !requests_.empty() || !live_.empty();
  }
  for (std::unique_ptr<LiveRequest>& request : requests_) enter(std::move(request));
  requests_.clear();
  now_ = Clock::now();
  while (!live_.empty()) finish(*live_.begin()->second, FinishReason::cancelled, {});
  publish();
}

// After a fault. Scheduler and cache may be in the middle of something and are left alone, and there may be no memory:
// what is ready goes out, and the outbox ends who has no answer. All under the lock, so that no request enters behind
// the end, and who has a last delta sees that the engine has failed.
void Executor::fail(std::string&& error) {
  const std::lock_guard lock(mutex_);
  closing_ = cut_short_ = true;
  inbox_.clear();
  queued_requests_ = 0;
  queued_tokens_ = 0;
  shown_.running = shown_.waiting = 0;
  fault_of([this] { outbox_.put(deltas_); });
  outbox_.fail(error);
  error_ = std::move(error);
}

}  // namespace precast
