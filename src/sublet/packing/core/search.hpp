// Exact and anytime: can these blocks be packed under a capacity, and what is the smallest capacity?
#pragma once
#include "problem.hpp"
#include "sections.hpp"

namespace sublet {

// All searches are deterministic in their arguments; `should_stop` is the only thing that can make two runs
// differ. A step is one placement or postponement.
Decision solve(const Problem& problem, int64_t capacity, uint64_t seed, int64_t max_steps,
               const ShouldStop& should_stop);
// What searches of the same sections learn from each other, whatever their capacities: how often each section failed
// them, where each block was put last, the part of a packing that got furthest (-1: not placed), and a whole packing.
struct Experience {
    std::vector<double> weight;
    double bump = 1.0;
    std::vector<int64_t> last, furthest, whole;
    explicit Experience(const Sections& sections)
        : weight(sections.count, 1.0), last(sections.blocks.size(), -1), furthest(last) {}
};

// As above, of sections; offsets are those of blocks.
Decision solve(const Sections& sections, int64_t capacity, uint64_t seed, int64_t max_steps,
               const ShouldStop& should_stop, Experience& seen);

// The smallest arena between a proved bound and an incumbent (may be empty). Anytime: stopped, it has the best.
Minimum minimise(const Problem& problem, int64_t lower_bound, const std::vector<int64_t>& incumbent, uint64_t seed,
                 int64_t max_steps, const ShouldStop& should_stop);

}  // namespace sublet
