// A problem, boiled down: blocks (items that share an offset) and sections (sets of blocks that all conflict).
#pragma once
#include <string>

#include "problem.hpp"

namespace sublet {

// A block needs `size` bytes in each of the sections [begin, end).
struct Run {
    int begin, end;
    int64_t size;
};

// A block that conflicts with this one. `mine` and `theirs` are the bytes each needs where they meet:
// whichever lies lower, the other lies at least that much above it.
struct Neighbour {
    int block;
    int64_t mine, theirs;
};

struct Block {
    int64_t size = 0;  // its largest run
    int64_t alignment = 1;
    int64_t pinned = -1;
    int first = 0, last = 0;  // all its runs lie in the sections [first, last)
    int run_begin = 0, run_end = 0;
    int near_begin = 0, near_end = 0;
    int twin = -1;      // the next block with the same runs, size and alignment, or -1
    int64_t lived = 0;  // time alive, for scores only
};

// Invariant: the blocks of a section conflict pairwise; if `covered`, two blocks conflict only when some section
// holds both. Every block is in a section, and [first, last) of two that conflict overlap. Items without bytes
// are no blocks.
// Blocks ascend by (first, last), so that blocks that hang together in time are near each other.
struct Sections {
    int count = 0;
    bool covered = true;
    std::vector<Block> blocks;
    std::vector<Run> runs;
    std::vector<Neighbour> near;
    std::vector<int> member_begin, members;  // blocks of section s: members[member_begin[s] .. member_begin[s + 1])
    std::vector<int64_t> member_size;        // the bytes of each there
    std::vector<int> block_of;               // item -> block, -1 when neither it nor a companion needs bytes
    std::vector<int64_t> offset_of_empty;    // where those without a block are
    std::string contradiction;               // why no packing can exist at any capacity, or empty
    int64_t peak = 0;                        // largest section (saturated at INT64_MAX)
};

// Cliques, grown from the `known` ones and then from the heaviest uncovered conflicts, until they hold every
// conflict (`covered`) or the sum of their sizes exceeds `most_entries`. Every node is in one.
std::vector<std::vector<int>> cover_by_cliques(const std::vector<std::pair<int, int>>& conflicts,
                                               const std::vector<int64_t>& weights,
                                               const std::vector<std::vector<int>>& known, size_t most_entries,
                                               bool& covered);

Sections sections_of(const Problem& problem);

}  // namespace sublet
