#include <algorithm>

#include "../../../packing/core/random.hpp"
#include "search.hpp"

namespace sublet::recompute {

namespace {

struct Clone {
    int node, slot;
    int64_t cost;
};

std::vector<Clone> listed(const Level& level, const Clones& clones) {
    std::vector<Clone> found;
    for (int r = 0; r < level.nodes(); r++)
        for (int j : clones[r]) found.push_back({j, r, level.cost[j]});
    std::stable_sort(found.begin(), found.end(), [](const Clone& a, const Clone& b) { return a.cost > b.cost; });
    return found;
}

bool take_out(Clones& clones, int j, int r) {
    std::vector<int>& at = clones[r];
    const auto place = std::lower_bound(at.begin(), at.end(), j);
    if (place == at.end() || *place != j) return false;
    at.erase(place);
    return true;
}

}  // namespace

void spare(const Level& level, int64_t budget, Clones& clones, int64_t& steps) {
    Timeline timeline;
    tidy(level, clones, timeline);
    int64_t cost = timeline.cost;
    bool changed = true;
    while (changed) {
        changed = false;
        for (const Clone& clone : listed(level, clones)) {
            if (!take_out(clones, clone.node, clone.slot)) continue;
            timeline.work_out(level, clones);
            steps++;
            if (timeline.peak <= budget && timeline.cost <= cost) {
                changed = true;
                cost = timeline.cost;
            } else {
                std::vector<int>& at = clones[clone.slot];
                at.insert(std::lower_bound(at.begin(), at.end(), clone.node), clone.node);
            }
        }
        if (changed) tidy(level, clones, timeline);
    }
}

void improve(const Level& level, int64_t budget, uint64_t seed, Clones& clones, int64_t& steps, int64_t most,
             const ShouldStop& should_stop) {
    Random random(seed);
    Timeline timeline;
    tidy(level, clones, timeline);
    if (timeline.peak > budget) return;
    int64_t cost = timeline.cost;
    while (steps < most && !should_stop()) {
        Clones changed = clones;
        const std::vector<Clone> all = listed(level, clones);
        if (all.empty()) return;
        const int width = 2 + static_cast<int>(random.below(24));
        if (random.below(2)) {  // a stretch of time
            const int middle = all[random.below(all.size())].slot;
            for (const Clone& clone : all)
                if (std::abs(clone.slot - middle) <= width) take_out(changed, clone.node, clone.slot);
        } else {  // here and there
            for (int i = 0; i < width; i++) {
                const Clone& clone = all[random.below(all.size())];
                take_out(changed, clone.node, clone.slot);
            }
        }
        if (!reduce(level, budget, changed, steps, most)) continue;
        spare(level, budget, changed, steps);
        timeline.work_out(level, changed);
        if (timeline.peak <= budget && timeline.cost <= cost) {
            cost = timeline.cost;
            clones = std::move(changed);
        }
    }
}

}  // namespace sublet::recompute
