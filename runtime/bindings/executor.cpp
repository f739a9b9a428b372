// The executor, its backends and what it delivers. Every call that may wait releases the GIL.
#include "runtime/core/executor.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstring>
#include <utility>
#include <variant>

#include "plugins/cpu/isa.h"
#include "runtime/bindings/bindings.h"
#include "runtime/core/counting_backend.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace precast {
namespace {

/// `Name(field=value, …)` of what a class binds to be read, in the order of its binding.
std::string shown(nb::handle self) {
  std::string fields;
  const nb::object bound = self.type().attr("__dict__");
  for (const nb::handle name : bound) {
    if (!PyObject_TypeCheck(nb::object(bound[name]).ptr(), &PyProperty_Type)) continue;
    fields += (fields.empty() ? "" : ", ") + nb::cast<std::string>(name) + "=" + nb::repr(self.attr(name)).c_str();
  }
  return nb::cast<std::string>(self.type().attr("__name__")) + "(" + fields + ")";
}

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::timeout:
      return "timeout";
    case FinishReason::error:
      return "error";
    case FinishReason::none:
      break;
  }
  return nullptr;
}

// The core's errors are the package's own: precast.errors.RequestError and EngineError. That module is imported when
// one is raised: while the package is built, the stubs are made from this module alone.
void bind_errors() {
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    const auto raise = [](const char* type, const char* message) {
      // Messages name files, whose names may be any bytes.
      const auto text =
          nb::steal(PyUnicode_DecodeUTF8(message, static_cast<Py_ssize_t>(std::strlen(message)), "surrogateescape"));
      PyErr_SetObject(nb::module_::import_("precast.errors").attr(type).ptr(), text.ptr());
    };
    try {
      std::rethrow_exception(p);
    } catch (const QueueFullError& e) {
      raise("QueueFullError", e.what());
    } catch (const RequestError& e) {
      raise("RequestError", e.what());
    } catch (const EngineError& e) {
      raise("EngineError", e.what());
    } catch (const IsaError& e) {
      raise("EngineError", e.what());
    }
  });
}

void bind_outputs(nb::module_& m) {
  nb::class_<TokenLogprob>(m, "TokenLogprob")
      .def_ro("token", &TokenLogprob::token)
      .def_ro("logprob", &TokenLogprob::logprob);
  nb::class_<TokenLogprobs>(m, "TokenLogprobs")
      .def_ro("logprob", &TokenLogprobs::logprob)
      .def_ro("top", &TokenLogprobs::top);
  nb::class_<OutputDelta>(m, "OutputDelta", "What one step adds to one request's output.")
      .def(
          "append", [](OutputDelta& delta, OutputDelta& later) { append_delta(delta, std::move(later)); }, "later"_a,
          "Adds what a later delta of the same output says, which is empty then.")
      .def_ro("id", &OutputDelta::id)
      .def_ro("index", &OutputDelta::index)
      .def_ro("token_ids", &OutputDelta::token_ids)
      .def_ro("num_echoed", &OutputDelta::num_echoed)
      .def_ro("text", &OutputDelta::text)
      .def_ro("logprobs", &OutputDelta::logprobs)
      .def_prop_ro("prompt_logprobs",
                   [](const OutputDelta& d) -> std::optional<std::vector<TokenLogprobs>> {
                     if (d.prompt_logprobs == nullptr) return std::nullopt;
                     return *d.prompt_logprobs;
                   })
      .def_ro("cumulative_logprob", &OutputDelta::cumulative_logprob)
      .def_ro("finished", &OutputDelta::request_finished, "Whether this is the request's last.")
      .def_prop_ro("finish_reason",
                   [](const OutputDelta& d) -> std::optional<std::string> {
                     const char* name = name_of(d.finish_reason);
                     return name == nullptr ? std::nullopt : std::optional<std::string>(name);
                   })
      .def_ro("error", &OutputDelta::error)
      .def_prop_ro(
          "stop_string",
          [](const OutputDelta& d) { return d.stop_string.empty() ? std::nullopt : std::optional(d.stop_string); })
      .def_prop_ro("stop_token",
                   [](const OutputDelta& d) { return d.stop_token < 0 ? std::nullopt : std::optional(d.stop_token); })
      .def_ro("prompt_tokens", &OutputDelta::prompt_tokens)
      .def_ro("cached_tokens", &OutputDelta::cached_tokens)
      .def_ro("completion_tokens", &OutputDelta::completion_tokens)
      .def_ro("seed", &OutputDelta::seed)
      .def_ro("queue_seconds", &OutputDelta::queue_seconds)
      .def_ro("first_token_seconds", &OutputDelta::first_token_seconds)
      .def_ro("total_seconds", &OutputDelta::total_seconds)
      .def_ro("token_latencies", &OutputDelta::token_latencies)
      .def_ro("num_preemptions", &OutputDelta::num_preemptions);
  nb::class_<ExecutorStats>(m, "ExecutorStats")
      .def_ro("waiting", &ExecutorStats::waiting)
      .def_ro("running", &ExecutorStats::running)
      .def_ro("queued_requests", &ExecutorStats::queued_requests)
      .def_ro("queued_tokens", &ExecutorStats::queued_tokens)
      .def_ro("paused", &ExecutorStats::paused)
      .def_ro("num_pages", &ExecutorStats::num_pages)
      .def_ro("free_pages", &ExecutorStats::free_pages)
      .def_ro("cached_pages", &ExecutorStats::cached_pages)
      .def_ro("available_pages", &ExecutorStats::available_pages)
      .def_ro("pauses", &ExecutorStats::pauses)
      .def_ro("steps", &ExecutorStats::steps)
      .def_ro("step_tokens", &ExecutorStats::step_tokens)
      .def_ro("step_sequences", &ExecutorStats::step_sequences)
      .def_ro("finished", &ExecutorStats::finished)
      .def_ro("step_running_seconds", &ExecutorStats::step_running_seconds)
      .def_ro("alive", &ExecutorStats::alive)
      .def_ro("error", &ExecutorStats::error)
      .def("__repr__", &shown);
}

void bind_iteration_stats(nb::module_& m) {
  nb::class_<KvCacheStats>(m, "KvCacheStats")
      .def_ro("max_num_blocks", &KvCacheStats::max_num_blocks)
      .def_ro("free_num_blocks", &KvCacheStats::free_num_blocks, "Held by no request; cached ones too.")
      .def_ro("used_num_blocks", &KvCacheStats::used_num_blocks)
      .def_ro("tokens_per_block", &KvCacheStats::tokens_per_block)
      .def_ro("alloc_total_blocks", &KvCacheStats::alloc_total_blocks, "Handed out since the start.")
      .def_ro("reused_blocks", &KvCacheStats::reused_blocks, "Of prompts, found in the cache since the start.")
      .def_ro("missed_blocks", &KvCacheStats::missed_blocks, "Of prompts, computed since the start.")
      .def_ro("cache_hit_rate", &KvCacheStats::cache_hit_rate)
      .def("__repr__", &shown);
  nb::class_<InflightBatchingStats>(m, "InflightBatchingStats")
      .def_ro("num_scheduled_requests", &InflightBatchingStats::num_scheduled_requests)
      .def_ro("num_context_requests", &InflightBatchingStats::num_context_requests)
      .def_ro("num_gen_requests", &InflightBatchingStats::num_gen_requests)
      .def_ro("num_ctx_tokens", &InflightBatchingStats::num_ctx_tokens)
      .def_ro("num_paused_requests", &InflightBatchingStats::num_paused_requests, "By this step.")
      .def("__repr__", &shown);
  nb::class_<IterationStats>(m, "IterationStats", "What one step was like; see runtime/core/iteration_stats.h.")
      .def_ro("timestamp", &IterationStats::timestamp, "Its end, in seconds since 1970.")
      .def_ro("iter", &IterationStats::iter)
      .def_ro("iter_latency_ms", &IterationStats::iter_latency_ms)
      .def_ro("model_latency_ms", &IterationStats::model_latency_ms)
      .def_ro("new_active_requests_queue_latency_ms", &IterationStats::new_active_requests_queue_latency_ms)
      .def_ro("num_new_active_requests", &IterationStats::num_new_active_requests)
      .def_ro("num_active_requests", &IterationStats::num_active_requests)
      .def_ro("num_queued_requests", &IterationStats::num_queued_requests)
      .def_ro("num_completed_requests", &IterationStats::num_completed_requests)
      .def_ro("max_num_active_requests", &IterationStats::max_num_active_requests)
      .def_ro("kv_cache_stats", &IterationStats::kv_cache_stats)
      .def_ro("inflight_batching_stats", &IterationStats::inflight_batching_stats)
      .def("__repr__", &shown);
}

void bind_backends(nb::module_& m) {
  nb::class_<KvGroup>(m, "KvGroup", "Layers whose K/V pages are handed out together; see runtime/core/core.h.")
      .def_ro("window", &KvGroup::window)
      .def_ro("num_layers", &KvGroup::num_layers)
      .def_ro("page_bytes", &KvGroup::page_bytes)
      .def("__repr__", &shown);
  nb::class_<ModelLimits>(m, "ModelLimits")
      .def_ro("vocab_size", &ModelLimits::vocab_size)
      .def_ro("max_batch_size", &ModelLimits::max_batch_size)
      .def_ro("max_num_tokens", &ModelLimits::max_num_tokens)
      .def_ro("max_seq_len", &ModelLimits::max_seq_len)
      .def_ro("page_tokens", &ModelLimits::page_tokens)
      .def_ro("groups", &ModelLimits::groups)
      .def("__repr__", &shown);
  nb::class_<Backend>(m, "Backend", "Runs steps; given to one Executor.").def_prop_ro("limits", &Backend::limits);
  nb::class_<CountingBackend, Backend>(m, "CountingBackend",
                                       "A model without weights, for tests: logits are pseudo-random numbers keyed by "
                                       "the tokens that a sequence finds in its own pages.")
      .def(
          "__init__",
          [](CountingBackend* self, int32_t vocab_size, int32_t max_batch_size, int32_t max_num_tokens,
             int32_t max_seq_len, int32_t page_tokens, double step_seconds, int64_t fail_at_step, TokenId poison_token,
             int32_t levels, int32_t range, const std::vector<int32_t>& windows) {
            ModelLimits limits{vocab_size, max_batch_size, max_num_tokens, max_seq_len, page_tokens, {}};
            for (const int32_t window : windows) limits.groups.push_back({window, 1, 8});
            new (self) CountingBackend({limits, step_seconds, fail_at_step, poison_token, levels, range});
          },
          nb::kw_only(), "vocab_size"_a = 64, "max_batch_size"_a = 4, "max_num_tokens"_a = 64, "max_seq_len"_a = 128,
          "page_tokens"_a = 32, "step_seconds"_a = 0.0, "fail_at_step"_a = -1, "poison_token"_a = -1,
          "levels"_a = 1 << 20, "range"_a = 0, "windows"_a = std::vector<int32_t>{0});
}

// Joins the loop without the GIL; and survives a fork: threads exist in the parent alone, and the event is the
// parent's.
class PyExecutor {
 public:
  PyExecutor(std::shared_ptr<Backend> backend, ExecutorConfig config, std::shared_ptr<const VocabBytes> vocab)
      : executor_(std::make_unique<Executor>(std::move(backend), std::move(config), std::move(vocab))) {}
  PyExecutor(const PyExecutor&) = delete;
  ~PyExecutor() {
    if (!is_here()) {
      // Destroying it would wait for threads that are not in this process.
      static_cast<void>(executor_.release());
      nb::set_leak_warnings(false);
      return;
    }
    nb::gil_scoped_release release;
    executor_.reset();
  }

  RequestId submit(std::vector<TokenId> prompt, SamplingParams params, int32_t priority,
                   std::optional<std::string> cache_salt, int32_t cache_priority, std::optional<double> timeout) {
    return here().submit(std::move(prompt), std::move(params),
                         {priority, std::move(cache_salt), cache_priority, timeout});
  }
  void pause() { here().pause(); }
  void resume() { here().resume(); }
  void cancel(RequestId id) {
    if (is_here()) executor_->cancel(id);
  }
  int fileno() const { return executor_->fileno(); }
  std::vector<OutputDelta> poll(size_t max) { return here().poll(max); }
  bool close(bool drain, double timeout_seconds) { return is_here() && executor_->close(drain, timeout_seconds); }
  ExecutorStats stats() const { return here().stats(); }
  std::pair<std::vector<CacheEvent>, uint64_t> kv_events() {
    std::vector<CacheEvent> events;
    const uint64_t lost = here().kv_events(events);
    return {std::move(events), lost};
  }
  std::pair<std::vector<IterationStats>, uint64_t> iteration_stats() {
    std::vector<IterationStats> steps;
    const uint64_t lost = here().iteration_stats(steps);
    return {std::move(steps), lost};
  }
  const ModelLimits& limits() const { return executor_->limits(); }
  bool is_here() const { return getpid() == process_; }

 private:
  Executor& here() const {
    if (!is_here()) {
      throw EngineError("this engine was loaded before the process forked, and runs in the parent only; load it again");
    }
    return *executor_;
  }

  std::unique_ptr<Executor> executor_;
  pid_t process_ = getpid();
};

void bind_events(nb::module_& m) {
  nb::class_<CacheEvent>(m, "CacheEvent", "A page that the prefix cache has stored or removed.")
      .def_prop_ro("kind",
                   [](const CacheEvent& e) { return e.kind == CacheEvent::Kind::stored ? "stored" : "removed"; })
      .def_ro("node", &CacheEvent::node, "Never used again for another page.")
      .def_ro("parent", &CacheEvent::parent, "Stored: the node of the page before; 0: it is the first.")
      .def_prop_ro("key", [](const CacheEvent& e) { return nb::bytes(e.key.data(), e.key.size()); })
      .def_ro("tokens", &CacheEvent::tokens, "Stored: of this page alone.")
      .def("__repr__", &shown);
}

}  // namespace

void bind_executor(nb::module_& m) {
  bind_errors();
  bind_outputs(m);
  bind_iteration_stats(m);
  bind_backends(m);
  bind_events(m);
  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<PyExecutor>(m, "Executor",
                         "Requests in, outputs out, one loop thread between; see runtime/core/executor.h.")
      .def(
          "__init__",
          [](PyExecutor* self, std::shared_ptr<Backend> backend,
             const std::variant<int32_t, std::vector<int32_t>>& num_pages, int32_t max_num_tokens,
             int32_t max_batch_size, int32_t max_chunk_tokens, const std::string& scheduler_policy,
             const std::string& request_order, const std::string& prefill_order, int32_t max_overtakes,
             bool enable_prefix_caching, size_t kv_events, size_t iteration_stats, std::vector<TokenId> eos_token_ids,
             std::shared_ptr<VocabBytes> vocab, std::shared_ptr<Prefixes> prefixes, int32_t max_queued_requests,
             int64_t max_queued_tokens) {
            ExecutorConfig config{
                .num_pages = pages_of_groups(num_pages, backend->limits().groups.size()),
                .scheduler = scheduler_config(max_num_tokens, max_batch_size, max_chunk_tokens, scheduler_policy,
                                              request_order, prefill_order, max_overtakes),
                .enable_prefix_caching = enable_prefix_caching,
                .prefixes = std::move(prefixes),
                .kv_events = kv_events,
                .iteration_stats = iteration_stats,
                .eos_token_ids = std::move(eos_token_ids),
                .max_queued_requests = max_queued_requests,
                .max_queued_tokens = max_queued_tokens};
            new (self) PyExecutor(std::move(backend), std::move(config), std::move(vocab));
          },
          "backend"_a, nb::kw_only(), "num_pages"_a, "max_num_tokens"_a = 0, "max_batch_size"_a = 0,
          "max_chunk_tokens"_a = 0, "scheduler_policy"_a = "guaranteed_no_evict", "request_order"_a = "fcfs",
          "prefill_order"_a = "first_come", "max_overtakes"_a = SchedulerConfig{}.max_overtakes,
          "enable_prefix_caching"_a = true, "kv_events"_a = 0, "iteration_stats"_a = ExecutorConfig{}.iteration_stats,
          "eos_token_ids"_a = std::vector<TokenId>{}, "vocab"_a.none() = nb::none(), "prefixes"_a.none() = nb::none(),
          "max_queued_requests"_a = 0, "max_queued_tokens"_a = 0,
          "Allocates the KV pools, num_pages of every layer group or a list of them, and starts the loop. Raises "
          "EngineError, MemoryError.")
      .def("submit", &PyExecutor::submit, "prompt"_a, "params"_a, nb::kw_only(),
           "priority"_a = RequestOptions{}.priority, "cache_salt"_a = nb::none(),
           "cache_priority"_a = RequestOptions{}.cache_priority, "timeout"_a.none() = nb::none(), Release(),
           "Enqueues token ids; returns the request's id. Raises RequestError when the request is refused.")
      .def("pause", &PyExecutor::pause, Release(), "No step begins until resume(); requests are taken and wait.")
      .def("resume", &PyExecutor::resume, Release())
      .def("cancel", &PyExecutor::cancel, "id"_a, Release(), "Ends a request within a step.")
      .def("fileno", &PyExecutor::fileno, "Readable while poll() would return something.")
      .def("poll", &PyExecutor::poll, "max"_a = 0, Release(), "At most max deltas (0: all); never waits.")
      .def("close", &PyExecutor::close, "drain"_a = false, "timeout"_a = 0.0, Release(),
           "Ends the loop; with drain, lets requests finish for at most timeout seconds first. Whether every request "
           "came to its own end: False when some were cancelled here, or failed with the engine.")
      .def("stats", &PyExecutor::stats, Release())
      .def("kv_events", &PyExecutor::kv_events, Release(),
           "What the prefix cache has stored and removed since the last call, and how many events were lost before.")
      .def("iteration_stats", &PyExecutor::iteration_stats, Release(),
           "What the steps since the last call were like, and how many of them were lost before.")
      .def_prop_ro("is_here", &PyExecutor::is_here,
                   "False in a process that was forked from the executor's: there submit, poll and stats raise "
                   "EngineError, cancel does nothing, and close returns False.")
      .def_prop_ro("limits", &PyExecutor::limits);
}

}  // namespace precast
