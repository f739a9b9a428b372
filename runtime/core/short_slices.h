// How long a thread runs before another one that waits for the CPU has its turn.
#pragma once

namespace precast {

// Asks the system to give the calling thread its share of a CPU in turns of 0.1 ms, where it can (Linux 6.12 and later;
// elsewhere nothing happens). Threads of a job wait for each other: beside other busy processes a thread that is taken
// off its CPU with an item half done keeps all others waiting for a whole turn of somebody else, 3 ms otherwise. Its
// share stays what it was. Beside as many busy processes as CPUs, decode of one sequence takes 2.1 times as long as
// alone, 2.3 with usual turns (tests/perf/oversubscribed.py, two CPUs).
void take_short_slices() noexcept;

}  // namespace precast
