// Which capacities are tried, with how much effort, between a proved bound and the best packing.
#include <algorithm>
#include <numeric>

#include "search.hpp"

namespace sublet {
namespace {

constexpr int64_t kFirstBudget = 20000;  // steps of a try in the first round; doubled from round to round
constexpr int64_t kFine = 16;            // a round halves what lies below the best packing to this part of the gap
constexpr int64_t kNear = 64;            // a round asks for the bound itself when the gap is this part of it

int64_t arena_of(const Sections& sections, const std::vector<int64_t>& offsets) {
    int64_t arena = 0;
    for (size_t i = 0; i < offsets.size(); i++) arena = std::max(arena, offsets[i] + sections.blocks[i].size);
    return arena;
}

std::vector<int64_t> offsets_of_items(const Problem& problem, const Sections& sections,
                                      const std::vector<int64_t>& of_block) {
    std::vector<int64_t> offsets;
    for (size_t item = 0; item < problem.items.size(); item++) {
        int block = sections.block_of[item];
        offsets.push_back(block >= 0 ? of_block[block] : sections.offset_of_empty[item]);
    }
    return offsets;
}

std::vector<int64_t> offsets_of_blocks(const Sections& sections, const std::vector<int64_t>& of_item) {
    std::vector<int64_t> offsets(of_item.empty() ? 0 : sections.blocks.size());
    for (size_t item = 0; item < of_item.size(); item++)
        if (sections.block_of[item] >= 0) offsets[sections.block_of[item]] = of_item[item];
    return offsets;
}

// All offsets can be multiples of this: sizes, alignments and pins are.
int64_t unit_of(const Sections& sections) {
    int64_t unit = 0;
    for (const Run& run : sections.runs) unit = std::gcd(unit, run.size);
    for (const Block& block : sections.blocks)
        unit = std::gcd(unit, std::gcd(block.alignment, std::max<int64_t>(0, block.pinned)));
    return std::max<int64_t>(1, unit);
}

}  // namespace

Decision solve(const Problem& problem, int64_t capacity, uint64_t seed, int64_t max_steps,
               const ShouldStop& should_stop) {
    Sections sections = sections_of(problem);
    Experience seen(sections);
    Decision out = solve(sections, capacity, seed, max_steps, should_stop, seen);
    if (out.verdict == Verdict::feasible) out.offsets = offsets_of_items(problem, sections, out.offsets);
    return out;
}

Minimum minimise(const Problem& problem, int64_t lower_bound, const std::vector<int64_t>& incumbent, uint64_t seed,
                 int64_t max_steps, const ShouldStop& should_stop) {
    Minimum out;
    Sections sections = sections_of(problem);
    if (!sections.contradiction.empty()) return out;
    Experience seen(sections);
    seen.whole = offsets_of_blocks(sections, incumbent);
    const int64_t unit = unit_of(sections);
    auto in_units = [&](int64_t bytes) { return bytes / unit + (bytes % unit != 0); };
    bool found = !seen.whole.empty() || sections.blocks.empty();
    int64_t proved = in_units(std::max(lower_bound, sections.peak));
    int64_t reached = found ? in_units(arena_of(sections, seen.whole)) : kMaxBytes / unit + 1;
    auto done = [&] { return reached <= proved || out.steps >= max_steps || (should_stop && should_stop()); };
    for (int64_t budget = kFirstBudget; !done(); budget *= 2) {
        int64_t hope = proved;  // capacities below are given up in this round
        bool ask_bound = budget == kFirstBudget || reached - proved < proved / kNear;
        while (hope < reached && reached - hope > (reached - proved) / kFine && !done()) {
            int64_t capacity = ask_bound ? proved : hope + (reached - hope) / 2;
            ask_bound = false;
            Decision got =
                solve(sections, capacity * unit, seed++, std::min(budget, max_steps - out.steps), should_stop, seen);
            out.steps += std::max<int64_t>(1, got.steps);
            if (got.verdict == Verdict::feasible) {
                seen.whole = got.offsets;
                found = true;
                reached = in_units(arena_of(sections, got.offsets));
                continue;
            }
            hope = capacity + 1;
            if (got.verdict == Verdict::infeasible) proved = std::max(proved, hope);
        }
    }
    if (!found) return out;
    out.offsets = offsets_of_items(problem, sections, seen.whole);
    out.arena = arena_of(sections, seen.whole);
    out.bound = std::min(proved * unit, out.arena);
    return out;
}

}  // namespace sublet
