// operator new that can be told to fail. A program that has it has it everywhere.
#pragma once
#include <cstdint>

namespace precast {

enum class Whose : uint8_t { none, caller, others };  // which threads' allocations are counted

// Lets `number` allocations of these threads succeed from now on; the next one fails, and unless `alone` all after it.
void fail_at(Whose whose, int64_t number, bool alone);
// Returns how many have failed since fail_at.
int64_t stop_failing();

}  // namespace precast
