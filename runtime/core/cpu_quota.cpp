#include "runtime/core/cpu_quota.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

namespace precast {

namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

int affinity_cpus() {
  // Machines with more than 1024 CPUs need a larger mask; the kernel says EINVAL until it is large enough.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t* mask = CPU_ALLOC(cpus);
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    const bool ok = mask != nullptr && sched_getaffinity(0, bytes, mask) == 0;
    const int count = ok ? CPU_COUNT_S(bytes, mask) : 0;
    CPU_FREE(mask);
    if (count > 0) return count;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// "max 100000" or "150000 100000".
double quota_v2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota, period;
  return file >> quota >> period && quota > 0 && period > 0 ? quota / period : kUnlimited;
}

double quota_v1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
  double quota, period;
  const bool ok = quota_file >> quota && period_file >> period && quota > 0 && period > 0;
  return ok ? quota / period : kUnlimited;
}

// The smallest quota of the folder mount/path and its parents up to `mount`. In a container the path may belong to the
// host's tree and not exist here; then the mount itself is what counts.
template <typename Quota>
double smallest_quota(const std::string& mount, std::string path, Quota quota) {
  double smallest = quota(mount);
  while (!path.empty() && path != "/") {
    smallest = std::min(smallest, quota(mount + path));
    path.erase(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  return smallest;
}

bool lists_cpu(const std::string& controllers) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == "cpu") return true;
  }
  return false;
}

}  // namespace

int available_cpus(const std::string& root) {
  const std::string mount = root + "/sys/fs/cgroup";
  double quota = smallest_quota(mount, "", quota_v2);
  std::ifstream cgroups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(cgroups, line);) {  // "hierarchy:controllers:path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) {
      quota = std::min(quota, smallest_quota(mount, path, quota_v2));
    } else if (lists_cpu(controllers)) {
      quota = std::min(quota, smallest_quota(mount + "/" + controllers, path, quota_v1));
      quota = std::min(quota, smallest_quota(mount + "/cpu", path, quota_v1));
    }
  }
  const int cpus = affinity_cpus();
  return quota < cpus ? std::max(1, static_cast<int>(std::lround(quota))) : cpus;
}

}  // namespace precast
