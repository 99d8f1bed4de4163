// The question and the answer of packing, as plain data. No clock, no tensors.
#pragma once
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace sublet {

constexpr int64_t kMaxBytes = int64_t{1} << 62;  // largest size, capacity and offset
constexpr int64_t kMaxAlignment = int64_t{1} << 32;

// Needs `size` bytes at an address that is a multiple of `alignment`, during every piece [begin, end).
// What lies between two pieces is a gap. `pinned` is the offset it must have, or -1. `shift` is how far it lies above
// the offset it shares with its companions; only greedy placement knows shifts, the search wants all to be 0.
struct Item {
    int64_t size = 0;
    int64_t alignment = 1;
    std::vector<std::pair<int64_t, int64_t>> pieces;
    int64_t pinned = -1;
    int64_t shift = 0;
};

// `conflicts`, when `partial_order` is set, decides which items must not overlap, instead of the pieces.
// `companions` are pairs of items that must get the same offset, but for their shifts.
struct Problem {
    std::vector<Item> items;
    std::vector<std::pair<int, int>> companions;
    bool partial_order = false;
    std::vector<std::pair<int, int>> conflicts;
};

// Where a buffer goes between others: into the lowest hole that fits, or the smallest.
enum class Hole { lowest, smallest };

enum class Verdict { feasible, infeasible, unknown };

struct Decision {
    Verdict verdict = Verdict::unknown;
    std::vector<int64_t> offsets;  // one an item, when feasible
    int64_t steps = 0;
};

struct Minimum {
    std::vector<int64_t> offsets;
    int64_t arena = 0;
    int64_t bound = 0;  // proved: no packing is smaller
    int64_t steps = 0;
};

// Asked now and then; true makes a search return the best it has. The only way time gets into a search.
using ShouldStop = std::function<bool()>;

}  // namespace sublet
