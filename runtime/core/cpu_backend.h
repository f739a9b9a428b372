// The CPU backend: an engine's plan as a list of ops on a thread pool.
#pragma once
#include <memory>

#include "runtime/core/core.h"
#include "runtime/core/engine_file.h"

namespace precast {

// num_threads 0: as many as this process may use (cpu_quota.h). Checks every op of the plan against its weights and
// buffers; throws EngineError, which names the op, and for an engine that was built for another ISA level.
std::unique_ptr<Backend> make_cpu_backend(std::shared_ptr<const EngineFile> file, int num_threads);

}  // namespace precast
