// The CPU backend: an engine's plan as a list of ops on a thread pool (cpu_op.h; each op in its own cpu_*.cpp).
//
// Threads meet once per op that is worth sharing. A layer of a decoding sequence has five such meetings, after qkv,
// attention, dense, gate_up and down: norms, quantization, rope and the KV append of a few rows stay on the calling
// thread. With many rows they are shared too, which makes ten (eight without int8).
#pragma once
#include <memory>
#include <span>

#include "runtime/core/core.h"
#include "runtime/core/engine_file.h"

namespace precast {

class CpuBackend : public Backend {
 public:
  // As run; adds to op_seconds[i] what op i of the plan took.
  virtual void run_timed(const StepBatch& batch, float* logits, std::span<double> op_seconds) = 0;
};

// num_threads 0: as many as this process may use (cpu_quota.h). Checks every op of the plan against its weights and
// buffers; throws EngineError, which names the op, and for an engine that was built for another ISA level.
std::unique_ptr<CpuBackend> make_cpu_backend(std::shared_ptr<const EngineFile> file, int num_threads);

}  // namespace precast
