// How many CPUs this process may use.
#pragma once
#include <string>

namespace precast {

// The CPUs of the affinity mask, or fewer where a cgroup (v1 or v2) on the way up to the root has a smaller quota; a
// fraction is rounded to the nearest whole, at least 1. `root` is put before /proc and /sys (for tests).
int available_cpus(const std::string& root = "");

}  // namespace precast
