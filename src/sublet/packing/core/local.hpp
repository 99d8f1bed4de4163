// Quick packings of sections, and their improvement by changing the order of placement.
#pragma once
#include "problem.hpp"
#include "sections.hpp"

namespace sublet {

int64_t arena_of(const Sections& sections, const std::vector<int64_t>& offsets);

// The best of several orders and holes; stops early at `enough` bytes. Empty if none ends below 2^62.
std::vector<int64_t> quick_packing(const Sections& sections, int64_t enough);

// Iterated greedy: blocks at the top of the arena, and some that conflict with them, move ahead in the order;
// what gets no worse is kept. Changes `offsets` and returns the steps (placements) used.
int64_t improve(const Sections& sections, int64_t enough, uint64_t seed, int64_t max_steps,
                const ShouldStop& should_stop, std::vector<int64_t>& offsets);

}  // namespace sublet
