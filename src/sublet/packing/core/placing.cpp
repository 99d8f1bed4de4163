#include "placing.hpp"

#include <stdexcept>

namespace sublet {
namespace {

// The items each item must not overlap, one after another.
struct Adjacency {
    std::vector<int> begin, others;

    explicit Adjacency(const Problem& problem) : begin(problem.items.size() + 1), others(2 * problem.conflicts.size()) {
        for (auto [a, b] : problem.conflicts) begin[a + 1]++, begin[b + 1]++;
        std::partial_sum(begin.begin(), begin.end(), begin.begin());
        std::vector<int> next(begin.begin(), begin.end() - 1);
        for (auto [a, b] : problem.conflicts) others[next[a]++] = b, others[next[b]++] = a;
    }
};

// Nothing goes higher than on top of all others and of the highest pin, each rounded up to the alignment of those that
// share its offset.
void check_range(const Problem& problem) {
    __int128 common = 1, highest = 0;
    int64_t pin = 0;
    for (const Item& item : problem.items) {
        pin = std::max(pin, item.pinned);
        common = common / std::gcd(static_cast<int64_t>(common), item.alignment) * item.alignment;
        highest += static_cast<__int128>(item.size) + item.shift;
        if (common > kMaxBytes || highest + pin + common * static_cast<int64_t>(problem.items.size() + 1) > kMaxBytes)
            throw std::overflow_error("greedy: offsets could exceed 2^62");
    }
}

}  // namespace

std::vector<int64_t> place_among_conflicts(const Problem& problem, const std::vector<int>& order, Hole hole) {
    check_range(problem);
    const Adjacency near(problem);
    const std::vector<int> leader = leaders_of(problem);
    std::vector<std::vector<int>> members(problem.items.size());
    for (size_t i = 0; i < leader.size(); i++) members[leader[i]].push_back(static_cast<int>(i));
    std::vector<int64_t> offsets(problem.items.size(), -1);
    std::vector<Extent> taken;
    for (const Item& item : problem.items)
        if (item.pinned >= 0)  // together with its companions, which have no shifts then
            for (int companion : members[leader[&item - problem.items.data()]]) offsets[companion] = item.pinned;
    for (int first : order) {
        if (offsets[first] >= 0) continue;
        int64_t size = 0, alignment = 1;
        taken.clear();
        for (int item : members[leader[first]]) {
            const Item& it = problem.items[item];
            if (it.size > 0) size = std::max(size, it.shift + it.size);
            alignment = std::lcm(alignment, it.alignment);
        }
        for (int item : members[leader[first]]) {
            const Item& it = problem.items[item];
            if (it.size == 0) continue;  // in nobody's way, nor anybody in its
            for (int k = near.begin[item]; k < near.begin[item + 1]; k++) {
                const int other = near.others[k];
                if (offsets[other] < 0 || problem.items[other].size == 0) continue;
                const Extent there{offsets[other], offsets[other] + problem.items[other].size};
                taken.push_back(seen_from(there, it.shift, it.size, size));
            }
        }
        const int64_t offset = find_hole(taken, size, alignment, hole);
        for (int item : members[leader[first]]) offsets[item] = offset + problem.items[item].shift;
    }
    return offsets;
}

}  // namespace sublet
