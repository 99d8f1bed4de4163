// Search for a cheap rematerialization within a budget of live bytes.
#pragma once
#include <functional>

#include "../../../packing/core/random.hpp"
#include "level.hpp"

namespace sublet::recompute {

// Polled regularly; true ends a search with the best result so far.
using ShouldStop = std::function<bool()>;

// Greedily adds clones to `clones`, best decrease of the bytes above the budget per second first, until within the
// budget. Returns false if no clone helps. With `random`, each move is skipped with probability 1/2, to reach different
// results ("greedy insertion with blinks": Christiaens and Vanden Berghe, "Slack Induction by String Removals for
// Vehicle Routing Problems", 2020, section 5.3). A step is an evaluation: a pass over all nodes and their reads.
bool reduce(const Level& level, int64_t budget, Clones& clones, int64_t& steps, int64_t most,
            Random* random = nullptr);

// Adds or removes the clone of node j before reader r; returns true on a change.
bool put_in(Clones& clones, int j, int r);
bool take_out(Clones& clones, int j, int r);

// Removes the clones not needed to stay within the budget, most expensive first.
void spare(const Level& level, int64_t budget, Clones& clones, int64_t& steps);

// Ruin and recreate: removes random clones, then runs `reduce` and `spare`, and accepts results slightly costlier than
// the best so far, with a tolerance falling to zero.
void improve(const Level& level, int64_t budget, uint64_t seed, Clones& clones, int64_t& steps, int64_t most,
             const ShouldStop& should_stop);

// Checkpoints: divides the nodes before the peak into `count` segments of equal bytes. Each segment is dropped, except
// values read by later segments, and recomputed as a whole before the first reader after the peak.
Clones in_segments(const Level& level, int count);

// Removes idle clones.
void tidy(const Level& level, Clones& clones, Timeline& timeline);

}  // namespace sublet::recompute
