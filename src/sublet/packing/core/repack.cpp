#include "repack.hpp"

#include <algorithm>

#include "greedy.hpp"
#include "search.hpp"

namespace sublet {
namespace {

constexpr int kRounds = 8;             // targets tried, each half way down to the last that was given up
constexpr size_t kMostHigh = 1000;     // with more buffers above it, a target is given up
constexpr size_t kMostMoved = 3000;    // buffers taken out at a time
constexpr size_t kMostAround = 20000;  // and those that overlap them in time
constexpr int64_t kSteps = 40;         // of a search, for each buffer taken out

using Span = std::pair<int64_t, int64_t>;

class Repacker {
  public:
    Repacker(const Problem& problem, uint64_t seed, int64_t max_steps, const ShouldStop& should_stop,
             std::vector<int64_t>& offsets)
        : p_(problem), seed_(seed), max_steps_(max_steps), should_stop_(should_stop), offsets_(offsets) {}

    int64_t run(int64_t bound) {
        for (int round = 0; round < kRounds && !stopped(); round++) {
            const int64_t arena = arena_of(p_, offsets_), target = bound + (arena - bound) / 2;
            if (arena <= bound) break;
            if (!reach(target)) bound = target + 1;
        }
        return steps_;
    }

  private:
    const Problem& p_;
    uint64_t seed_;
    int64_t max_steps_, steps_ = 0;
    const ShouldStop& should_stop_;
    std::vector<int64_t>& offsets_;

    bool stopped() const { return steps_ >= max_steps_ || (should_stop_ && should_stop_()); }
    int64_t top(int item) const { return offsets_[item] + p_.items[item].size; }
    Span life(int item) const { return {p_.items[item].pieces.front().first, p_.items[item].pieces.back().second}; }

    // The bulkiest first: what is small mostly lies high on top of them.
    bool reach(int64_t target) {
        std::vector<std::pair<int64_t, int>> high;
        for (int i = 0; i < static_cast<int>(p_.items.size()); i++)
            if (p_.items[i].size > 0 && top(i) > target) high.emplace_back(-p_.items[i].size, i);
        if (high.size() > kMostHigh) return false;
        std::sort(high.begin(), high.end());
        for (auto [size, item] : high)
            if (top(item) > target && (stopped() || !lower(item, target))) return false;
        return true;
    }

    std::vector<int> alive_in(Span time) const {
        std::vector<int> items;
        for (int i = 0; i < static_cast<int>(p_.items.size()); i++) {
            if (p_.items[i].size == 0 || p_.items[i].pieces.empty()) continue;
            auto [begin, end] = life(i);
            if (begin < time.second && end > time.first) items.push_back(i);
        }
        return items;
    }

    // Takes out all that is alive within one and a half times its life around it.
    bool lower(int item, int64_t target) {
        if (p_.items[item].pinned >= 0) return false;
        const auto [begin, end] = life(item);
        const int64_t margin = (end - begin) / 2 * 3;
        std::vector<int> moved = alive_in({begin - margin, end + margin});
        if (moved.size() > kMostMoved) return false;
        Span hull{begin, end};
        for (int i : moved) hull = {std::min(hull.first, life(i).first), std::max(hull.second, life(i).second)};
        Problem around;
        std::vector<int> of;
        for (int i : alive_in(hull)) {
            const bool moves = p_.items[i].pinned < 0 && std::binary_search(moved.begin(), moved.end(), i);
            if (!moves && offsets_[i] >= target) continue;  // above all that moves
            Item part = p_.items[i];
            if (!moves) {
                part.pinned = offsets_[i];
                part.alignment = 1;
                part.size = std::min(part.size, target - part.pinned);
            }
            around.items.push_back(part);
            of.push_back(moves ? i : -1);
        }
        if (around.items.size() > kMostAround) return false;
        const int64_t steps = std::min(max_steps_ - steps_, kSteps * static_cast<int64_t>(moved.size()));
        Decision found = solve(around, target, seed_++, steps, should_stop_);
        steps_ += 1 + found.steps;
        if (found.verdict != Verdict::feasible) return false;
        for (size_t k = 0; k < of.size(); k++)
            if (of[k] >= 0) offsets_[of[k]] = found.offsets[k];
        return true;
    }
};

}  // namespace

int64_t repack(const Problem& problem, int64_t bound, uint64_t seed, int64_t max_steps, const ShouldStop& should_stop,
               std::vector<int64_t>& offsets) {
    if (problem.partial_order || !problem.companions.empty()) return 0;
    return Repacker(problem, seed, max_steps, should_stop, offsets).run(bound);
}

}  // namespace sublet
