// What placing one block takes: who shares its offset, and which hole between others it goes into.
#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "problem.hpp"

namespace sublet {

inline int64_t align_up(int64_t offset, int64_t alignment) {
    int64_t over = alignment == 1 ? 0 : offset % alignment;
    return over ? offset + std::min(alignment - over, kMaxBytes) : offset;
}

struct Extent {
    int64_t begin, end;
    bool operator<(const Extent& o) const { return begin < o.begin; }
};

// What is taken, seen from the offset of a block of `whole` bytes: of those only `size` from `shift` on conflict with
// it. The block fits at an offset when all of its bytes would fit beside this.
inline Extent seen_from(const Extent& taken, int64_t shift, int64_t size, int64_t whole) {
    return {taken.begin - shift - size + whole, taken.end - shift};
}

// The begin of the hole for `size` bytes among what is taken (any order; it is sorted here).
inline int64_t find_hole(std::vector<Extent>& taken, int64_t size, int64_t alignment, Hole hole) {
    std::sort(taken.begin(), taken.end());
    int64_t top = 0, best = -1, best_width = INT64_MAX;
    for (const Extent& extent : taken) {
        int64_t start = align_up(top, alignment), width = extent.begin - start;
        if (width >= size && width < best_width) {
            best = start;
            best_width = width;
            if (hole == Hole::lowest || width == size) return best;
        }
        top = std::max(top, extent.end);
    }
    return best >= 0 ? best : align_up(top, alignment);
}

// For each item the first of those it must share its offset with, directly or through others.
inline std::vector<int> leaders_of(const Problem& problem) {
    std::vector<int> leader(problem.items.size());
    std::iota(leader.begin(), leader.end(), 0);
    auto find = [&](int i) {
        while (leader[i] != i) i = leader[i] = leader[leader[i]];
        return i;
    };
    for (auto [a, b] : problem.companions) {
        int x = find(a), y = find(b);
        leader[std::max(x, y)] = std::min(x, y);
    }
    for (size_t i = 0; i < leader.size(); i++) leader[i] = find(static_cast<int>(i));
    return leader;
}

// Greedy placement where conflicts are pairs, not common times.
std::vector<int64_t> place_among_conflicts(const Problem& problem, const std::vector<int>& order, Hole hole);

}  // namespace sublet
