#include <algorithm>

#include "search.hpp"

namespace sublet::recompute {

namespace {

constexpr uint64_t WIDTH = 48;      // maximum clones, or positions to each side, removed in one step
constexpr double DEVIATION = 0.03;  // accepted worsening at first, as a share of the extra time

struct Clone {
    int node, slot;
    int64_t cost;
};

// Returns the clones, most expensive first.
std::vector<Clone> listed(const Level& level, const Clones& clones) {
    std::vector<Clone> found;
    for (int r = 0; r < level.nodes(); r++)
        for (int j : clones[r]) found.push_back({j, r, level.cost[j]});
    std::stable_sort(found.begin(), found.end(), [](const Clone& a, const Clone& b) { return a.cost > b.cost; });
    return found;
}

// True if the program without the clone at a moment certainly exceeds the budget. Without the clone, the redefined
// blocks stay live from the previous reader on, and at most the operands with the last use at the clone die earlier.
bool needed(const Level& level, int64_t budget, const Timeline& timeline, int moment) {
    int64_t goes = 0;
    for (int i = timeline.reads_at[moment]; i < timeline.reads_at[moment + 1]; i++) {
        const Content& content = timeline.contents[timeline.reads[i]];
        if (content.last != moment || content.kept) continue;
        // The clone defining the operand would become dead too, and free more bytes: no certain answer.
        if (content.made >= 0 && timeline.node[content.made] != timeline.slot[content.made]) return false;
        goes += level.nbytes[content.block];
    }
    for (int i = timeline.born_at[moment]; i < timeline.born_at[moment + 1]; i++) {
        const Content& content = timeline.contents[timeline.born[i]];
        if (content.last < 0 || content.before < 0) continue;
        const Content& before = timeline.contents[content.before];
        for (int m = std::max(before.last, before.made) + 1; m < moment; m++)
            if (!timeline.idle[m] && timeline.live[m] + level.nbytes[content.block] - goes > budget) return true;
    }
    return false;
}

}  // namespace

void spare(const Level& level, int64_t budget, Clones& clones, int64_t& steps) {
    Timeline now, without;
    tidy(level, clones, now);
    bool changed = true;
    while (changed) {
        changed = false;
        for (const Clone& clone : listed(level, clones)) {
            const int moment = now.moment_of(clone.node, clone.slot);
            if (!now.idle[moment] && needed(level, budget, now, moment)) continue;
            take_out(clones, clone.node, clone.slot);
            without.work_out(level, clones);
            steps++;
            if (without.peak <= budget && without.cost <= now.cost) {
                changed = true;
                std::swap(now, without);
            } else {
                put_in(clones, clone.node, clone.slot);
            }
        }
        if (changed) tidy(level, clones, now);
    }
}

void improve(const Level& level, int64_t budget, uint64_t seed, Clones& clones, int64_t& steps, int64_t most,
             const ShouldStop& should_stop) {
    Random random(seed);
    Timeline timeline;
    timeline.work_out(level, Clones(level.nodes()));
    const int64_t plain = timeline.cost;
    tidy(level, clones, timeline);
    if (timeline.peak > budget) return;
    int64_t least = timeline.cost;
    Clones now = clones;
    const int64_t begun = steps;
    while (steps < most && !should_stop()) {
        const std::vector<Clone> all = listed(level, now);
        if (all.empty()) break;
        Clones changed = now;
        const int width = 2 + static_cast<int>(random.below(WIDTH));
        if (random.below(2)) {  // remove a contiguous stretch
            const int middle = all[random.below(all.size())].slot;
            for (const Clone& clone : all)
                if (std::abs(clone.slot - middle) <= width) take_out(changed, clone.node, clone.slot);
        } else {  // remove scattered clones
            for (int i = 0; i < width; i++) {
                const Clone& clone = all[random.below(all.size())];
                take_out(changed, clone.node, clone.slot);
            }
        }
        if (!reduce(level, budget, changed, steps, most, &random)) continue;
        spare(level, budget, changed, steps);
        timeline.work_out(level, changed);
        const double left = static_cast<double>(std::max<int64_t>(most - steps, 0)) / static_cast<double>(most - begun);
        const double extra = static_cast<double>(least - plain) * (1 + DEVIATION * left);
        if (timeline.peak > budget || static_cast<double>(timeline.cost - plain) > extra) continue;
        now = std::move(changed);
        if (timeline.cost < least) {
            least = timeline.cost;
            clones = now;
        }
    }
}

}  // namespace sublet::recompute
