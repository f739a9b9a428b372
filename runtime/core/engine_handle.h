// An engine that is loaded and ready to run steps: what the Python class `Engine` holds and an executor is made from.
#pragma once
#include <memory>
#include <string>

#include "runtime/core/core.h"
#include "runtime/core/engine_file.h"
#include "runtime/core/plan.h"

namespace precast {

struct EngineHandle {
  std::shared_ptr<const EngineFile> file;  // the mapping, shared by everything that points into it
  std::unique_ptr<Backend> backend;        // one step at a time; its KV pool is allocated by whoever runs steps
};

}  // namespace precast
