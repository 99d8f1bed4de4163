// One pass each: buffers in some order, each into a hole between those it conflicts with. For up to a million.
#pragma once
#include "problem.hpp"

namespace sublet {

// Classes of size, each twice the one before, raised where the load comes near the peak; within a class by birth,
// as for equal sizes first fit in that order wastes nothing. The best order by far on large problems; for lifetimes.
// Offsets, one an item. Companions are placed together, each at its shift, pinned items first; a pinned item may force
// others above.
// Time: O(n log n + overlaps), memory: about 100 bytes a piece of a lifetime.
std::vector<int64_t> greedy_by_tightness(const Problem& problem);

// As above, in an order of the caller's: a permutation of the items (an item stands for its companions).
std::vector<int64_t> greedy_in_order(const Problem& problem, const std::vector<int>& order, Hole hole);

// A simulated allocator: one sweep over time, each buffer into the smallest hole at its birth (the lowest of several).
// O(n log n) however many overlap, for problems too dense for the others. Alignment honoured; a buffer with gaps
// keeps its bytes in them. Throws std::invalid_argument for companions, pins and partial orders.
std::vector<int64_t> sweep(const Problem& problem);

// How many pairs of lifetimes overlap, which is what the orders above take time for; pieces count one by one.
int64_t count_overlaps(const Problem& problem);

int64_t arena_of(const Problem& problem, const std::vector<int64_t>& offsets);

}  // namespace sublet
