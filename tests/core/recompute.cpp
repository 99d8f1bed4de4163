// The search for what is computed again, on random levels: no step outside of an array, nothing above a budget that is
// said to be met, nothing dearer after sparing and improving.
//
//     recompute 500 1     levels, seed
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "random.hpp"
#include "search.hpp"

using namespace sublet;
using namespace sublet::recompute;

namespace {

void require(bool holds, const char* what, uint64_t seed) {
    if (holds) return;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), what);
    std::exit(1);
}

// Brings a block to the slow memory: what is there has no bytes here, and a clone makes the block anew.
void offload(Level& level, int b, int nodes) {
    const int there = static_cast<int>(level.nbytes.size()), j = static_cast<int>(level.read.size());
    level.away[b] = j;
    level.nbytes.push_back(0), level.kept.push_back(0), level.maker.push_back(j), level.away.push_back(-1);
    level.read.push_back({b}), level.cloned.push_back({there}), level.born.push_back({there});
    level.renewed.push_back({b}), level.over.push_back({}), level.at_home.push_back({});
    level.extra.push_back(0), level.wasted.push_back(0), level.cost.push_back(3000);
    level.latest.push_back(nodes - 1);
}

Level drawn(Random& random, int nodes) {
    Level level;
    for (int j = 0; j < nodes; j++) {
        const int last = static_cast<int>(level.nbytes.size()) - 1;
        if (last >= 0 && j + 1 < nodes && level.away[last] < 0 && level.maker[last] + 1 == j && random.below(4) == 0) {
            offload(level, last, nodes);
            continue;
        }
        std::vector<int> read, born, over;
        const int known = static_cast<int>(level.nbytes.size());
        for (uint64_t i = random.below(3); i > 0 && known; i--) {
            const int b = random.below(2) ? known - 1 - static_cast<int>(random.below(std::min(known, 4)))
                                          : static_cast<int>(random.below(known));
            if (std::find(read.begin(), read.end(), b) == read.end()) read.push_back(b);
        }
        for (uint64_t i = 1 + random.below(2); i > 0; i--) {
            born.push_back(static_cast<int>(level.nbytes.size()));
            level.nbytes.push_back(static_cast<int64_t>(random.below(9)));
            level.kept.push_back(random.below(12) == 0);
            level.maker.push_back(j), level.away.push_back(-1);
        }
        if (!read.empty() && random.below(2)) over = {born[0], read[0]};
        level.read.push_back(read), level.cloned.push_back(read);
        level.born.push_back(born), level.renewed.push_back(born);
        level.over.push_back(over), level.at_home.push_back({});
        level.extra.push_back(static_cast<int64_t>(random.below(3)));
        level.wasted.push_back(0);
        level.cost.push_back(1000 * static_cast<int64_t>(random.below(20)));
        level.latest.push_back(random.below(6) ? nodes - 1 : static_cast<int>(random.below(nodes)));
    }
    level.kept.back() = 1;
    return level;
}

void check(uint64_t seed) {
    Random random(seed);
    const int nodes = 2 + static_cast<int>(random.below(40));
    const Level level = drawn(random, nodes);
    Timeline timeline;
    timeline.work_out(level, Clones(nodes));
    const int64_t plain = timeline.peak;
    for (int count : {2, 3, 5}) {
        const Clones segments = in_segments(level, count);
        for (int r = 0; r < nodes; r++)
            for (int j : segments[r]) require(j < r && r <= level.latest[j], "a clone too late", seed);
    }
    const int64_t budget = plain * (4 + static_cast<int64_t>(random.below(6))) / 10;
    for (Clones clones : {Clones(nodes), in_segments(level, 3)}) {
        int64_t steps = 0;
        const bool met = reduce(level, budget, clones, steps, INT64_MAX);
        timeline.work_out(level, clones);
        require(met == (timeline.peak <= budget), "met or not is told wrong", seed);
        for (int r = 0; r < nodes; r++)
            for (int j : clones[r]) require(j < r && r <= level.latest[j], "a clone too late", seed);
        if (!met) continue;
        int64_t before = timeline.cost;
        spare(level, budget, clones, steps);
        timeline.work_out(level, clones);
        require(timeline.peak <= budget && timeline.cost <= before, "sparing made it worse", seed);
        before = timeline.cost;
        improve(level, budget, seed, clones, steps, steps + 200, [] { return false; });
        timeline.work_out(level, clones);
        require(timeline.peak <= budget && timeline.cost <= before, "improving made it worse", seed);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const int count = argc > 1 ? std::atoi(argv[1]) : 500;
    const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    for (int i = 0; i < count; i++) check(first + static_cast<uint64_t>(i));
    std::printf("%d levels\n", count);
}
