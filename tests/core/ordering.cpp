// The search for orders, on random problems beside every set of nodes that can have run: no step outside of an array, no
// order that waits for what comes later, no peak that is not the order's, no bound above what some order needs.
//
//     ordering 500 1     problems, seed
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>

#include "cut.hpp"
#include "improve.hpp"
#include "random.hpp"

using namespace sublet;
using namespace sublet::ordering;

namespace {

constexpr int few = 12;  // nodes of which all sets are tried

void require(bool holds, const char* what, uint64_t seed) {
    if (holds) return;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), what);
    std::exit(1);
}

bool contains(const std::vector<int>& row, int what) { return std::find(row.begin(), row.end(), what) != row.end(); }

void add_atom(Problem& p, Random& random, int maker) {
    p.size.push_back(static_cast<int64_t>(random.below(9)));
    p.kept.push_back(random.below(8) == 0);
    p.maker.push_back(maker);
    p.readers.emplace_back();
    if (maker >= 0) p.born[maker].push_back(p.atoms() - 1);
}

Problem drawn(Random& random, int nodes) {
    Problem p;
    p.before.resize(nodes), p.after.resize(nodes), p.born.resize(nodes), p.read.resize(nodes), p.over.resize(nodes);
    const auto waits = [&](int j, int k) {
        if (k >= 0 && !contains(p.before[j], k)) p.before[j].push_back(k), p.after[k].push_back(j);
    };
    for (uint64_t i = random.below(3); i > 0; i--) add_atom(p, random, -1);
    for (int j = 0; j < nodes; j++) {
        for (uint64_t i = random.below(4); i > 0 && p.atoms(); i--) {
            const int known = p.atoms();
            const int a = random.below(2) ? known - 1 - static_cast<int>(random.below(std::min(known, 5)))
                                          : static_cast<int>(random.below(known));
            if (contains(p.read[j], a)) continue;
            p.read[j].push_back(a), p.readers[a].push_back(j);
            waits(j, p.maker[a]);
        }
        if (j && random.below(5) == 0) waits(j, static_cast<int>(random.below(j)));
        if (!p.read[j].empty() && random.below(2)) {
            Slot slot{static_cast<int64_t>(random.below(9)), {}};
            for (int a : p.read[j]) slot.operands.push_back({a});
            p.over[j].push_back(slot);
        }
        int64_t born = 0;
        for (uint64_t i = 1 + random.below(2); i > 0; i--) {
            add_atom(p, random, j);
            born += p.size.back();
        }
        for (Slot& slot : p.over[j]) slot.nbytes = std::min(slot.nbytes, born);
        p.extra.push_back(static_cast<int64_t>(random.below(3)));
    }
    return p;
}

// The lowest peak of all orders: the least over all ways to the set of all nodes.
int64_t lowest(const Problem& p) {
    const uint32_t all = (uint32_t{1} << p.nodes()) - 1;
    std::unordered_map<uint32_t, int64_t> level{{0, at_start(p)}};
    for (int i = 0; i < p.nodes(); i++) {
        std::unordered_map<uint32_t, int64_t> next;
        for (const auto& [set, peak] : level) {
            State state(p);
            for (int j = 0; j < p.nodes(); j++)
                if (set >> j & 1) state.run(j);
            for (int j = 0; j < p.nodes(); j++) {
                if (set >> j & 1 || state.waits[j]) continue;
                const uint32_t after = set | uint32_t{1} << j;
                const int64_t most = std::max(peak, state.during(j));
                const auto [at, added] = next.emplace(after, most);
                if (!added) at->second = std::min(at->second, most);
            }
        }
        level = std::move(next);
    }
    return level.at(all);
}

void check(uint64_t seed) {
    Random random(seed);
    const int nodes = 1 + static_cast<int>(random.below(random.below(4) ? few : 80));
    const Problem p = drawn(random, nodes);
    std::vector<int> given(nodes);
    for (int j = 0; j < nodes; j++) given[j] = j;
    const auto peak_of = [&](const std::vector<int>& order) {
        int64_t peak = at_start(p);
        for (int64_t bytes : curve(p, order)) peak = std::max(peak, bytes);
        return peak;
    };
    const Found found = improve(p, given, nodes > few ? 2000 : 1 << 20, [] { return false; });
    std::vector<char> ran(nodes, 0);
    for (int j : found.order) {
        require(!ran.at(j), "a node twice", seed);
        for (int k : p.before[j]) require(ran[k], "a node before what it waits for", seed);
        ran[j] = 1;
    }
    require(static_cast<int>(found.order.size()) == nodes, "not all nodes", seed);
    require(found.peak == peak_of(found.order), "the peak is not the order's", seed);
    require(found.peak <= peak_of(given), "worse than the order given", seed);
    require(found.bound <= found.peak, "a bound above an order", seed);
    for (int j = 0; j < nodes; j++) require(least_during(p, j) <= found.peak, "a cut above an order", seed);
    if (nodes > few) return;
    const int64_t least = lowest(p);
    require(found.peak == least, "an order is lower", seed);
    require(found.bound == least, "a bound that is not the least, though all was tried", seed);
    for (int64_t budget : {least, least - 1}) {
        int64_t steps = 0;
        const Answer answer = within(p, budget, steps, 1 << 20, [] { return false; });
        require(answer.outcome == (budget == least ? Outcome::found : Outcome::none), "found or none is wrong", seed);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const int count = argc > 1 ? std::atoi(argv[1]) : 500;
    const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    for (int i = 0; i < count; i++) check(first + static_cast<uint64_t>(i));
    std::printf("%d problems\n", count);
}
