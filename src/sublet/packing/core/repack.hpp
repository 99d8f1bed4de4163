// Large packings, improved only where they are highest.
#pragma once
#include "problem.hpp"

namespace sublet {

// Ruin and recreate: a buffer that ends above a target between `bound` and the arena is taken out together with those
// alive around it, and they are searched again among the rest, which stays where it is. Changes `offsets` (a packing,
// one offset an item) for the better; returns the steps used. For lifetimes without companions; does nothing to others.
// Time: two passes over the items a buffer above the target, and the steps.
int64_t repack(const Problem& problem, int64_t bound, uint64_t seed, int64_t max_steps, const ShouldStop& should_stop,
               std::vector<int64_t>& offsets);

}  // namespace sublet
