// What to compute again so that no more than a number of bytes is alive, in little time.
#pragma once
#include <functional>

#include "../../../packing/core/random.hpp"
#include "level.hpp"

namespace sublet::recompute {

// Asked once in a while; true ends a search, which then gives what it has.
using ShouldStop = std::function<bool()>;

// Adds clones to `clones`, the one that takes most off what is above the budget for its time first, until nothing is
// above it. False when nothing helps any more. With `random` it looks past half of them, and does not end where it did
// before ("greedy insertion with blinks": Christiaens and Vanden Berghe, "Slack Induction by String Removals for
// Vehicle Routing Problems", 2020, section 5.3). Time: a step is an evaluation, a pass over nodes and what they read.
bool reduce(const Level& level, int64_t budget, Clones& clones, int64_t& steps, int64_t most,
            Random* random = nullptr);

// Adds node j before a reader, or takes it out; whether that changed anything.
bool put_in(Clones& clones, int j, int r);
bool take_out(Clones& clones, int j, int r);

// Takes out the clones that are not needed to stay within the budget, dearest first.
void spare(const Level& level, int64_t budget, Clones& clones, int64_t& steps);

// Ruin and recreate: takes clones out at random, reduces and spares, and goes on from what costs little more than the
// least so far, ever less as steps go by.
void improve(const Level& level, int64_t budget, uint64_t seed, Clones& clones, int64_t& steps, int64_t most,
             const ShouldStop& should_stop);

// Checkpoints: what is made before the peak in so many stretches of equal bytes; a stretch but for what the next ones
// read is dropped, and computed again as a whole before the first reader behind the peak.
Clones in_segments(const Level& level, int count);

// The clones without those that do not run.
void tidy(const Level& level, Clones& clones, Timeline& timeline);

}  // namespace sublet::recompute
