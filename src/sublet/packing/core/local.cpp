#include "local.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "placing.hpp"
#include "random.hpp"

namespace sublet {
namespace {

constexpr int64_t kNone = -1;

// Places blocks one by one, each into a hole between its placed neighbours.
class Placer {
  public:
    explicit Placer(const Sections& sections) : p_(sections), offsets_(sections.blocks.size(), kNone) {}

    // Offsets in that order, or an empty list as soon as the arena would exceed `limit`.
    // `limit` is at most 2^62, so that no sum here overflows.
    const std::vector<int64_t>& place(const std::vector<int>& order, Hole hole, int64_t limit) {
        for (size_t i = 0; i < p_.blocks.size(); i++) offsets_[i] = p_.blocks[i].pinned;
        for (int i : order) {
            if (offsets_[i] != kNone) continue;
            offsets_[i] = find(i, hole);
            if (offsets_[i] > limit - p_.blocks[i].size) return none_;
        }
        return offsets_;
    }

  private:
    const Sections& p_;
    std::vector<int64_t> offsets_, none_;
    std::vector<std::pair<int64_t, int64_t>> forbidden_;

    // An offset o of block i collides with a neighbour at q when q - mine < o < q + theirs.
    int64_t find(int i, Hole hole) {
        forbidden_.clear();
        const Block& block = p_.blocks[i];
        for (int k = block.near_begin; k < block.near_end; k++) {
            const Neighbour& near = p_.near[k];
            int64_t at = offsets_[near.block];
            if (at != kNone) forbidden_.emplace_back(at - near.mine, at + near.theirs);
        }
        std::sort(forbidden_.begin(), forbidden_.end());
        int64_t from = 0, best = kNone, best_width = INT64_MAX;
        for (auto [below, above] : forbidden_) {
            int64_t start = align_up(from, block.alignment);
            if (start <= below && below - start < best_width) {
                best = start;
                best_width = below - start;
                if (hole == Hole::lowest || best_width == 0) return best;
            }
            from = std::max(from, above);
        }
        return best != kNone ? best : align_up(from, block.alignment);
    }
};

template <class Weight>
std::vector<int> descending(const Sections& sections, Weight weight) {
    std::vector<int> order(sections.blocks.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int a, int b) {
        const Block &x = sections.blocks[a], &y = sections.blocks[b];
        double wx = weight(x), wy = weight(y);
        return std::tuple(-wx, -x.size, -x.lived, a) < std::tuple(-wy, -y.size, -y.lived, b);
    });
    return order;
}

// Classes of size, raised where the load comes near the peak; in a class by birth. See greedy_by_tightness in
// greedy.hpp.
std::vector<int> by_tightness(const Sections& sections) {
    std::vector<double> weight(sections.blocks.size(), 0);
    for (int s = 0; s < sections.count; s++) {
        double load = 0;
        for (int m = sections.member_begin[s]; m < sections.member_begin[s + 1]; m++)
            load += static_cast<double>(sections.member_size[m]);
        for (int m = sections.member_begin[s]; m < sections.member_begin[s + 1]; m++)
            weight[sections.members[m]] = std::max(weight[sections.members[m]], load);
    }
    const double sixteenth = static_cast<double>(std::max<int64_t>(1, sections.peak)) / 16;
    for (size_t i = 0; i < weight.size(); i++)
        weight[i] =
            std::floor(log2_of(sections.blocks[i].size) + weight[i] / sixteenth) - sections.blocks[i].first / 0x1p32;
    return descending(sections, [&](const Block& block) { return weight[&block - sections.blocks.data()]; });
}

std::vector<std::vector<int>> usual_orders(const Sections& sections) {
    return {
        by_tightness(sections),
        descending(sections, [](const Block& b) { return static_cast<double>(b.size); }),
        descending(sections, [](const Block& b) { return static_cast<double>(b.near_end - b.near_begin); }),
        descending(sections, [](const Block& b) { return static_cast<double>(b.lived); }),
        descending(sections, [](const Block& b) { return static_cast<double>(b.lived) * static_cast<double>(b.size); }),
        descending(sections, [](const Block& b) { return -static_cast<double>(b.first); })};
}

}  // namespace

int64_t arena_of(const Sections& sections, const std::vector<int64_t>& offsets) {
    int64_t arena = 0;
    for (size_t i = 0; i < offsets.size(); i++) arena = std::max(arena, offsets[i] + sections.blocks[i].size);
    return arena;
}

std::vector<int64_t> quick_packing(const Sections& sections, int64_t enough) {
    Placer placer(sections);
    std::vector<int64_t> best;
    int64_t arena = INT64_MAX;
    for (const std::vector<int>& order : usual_orders(sections))
        for (Hole hole : {Hole::smallest, Hole::lowest}) {
            const std::vector<int64_t>& offsets = placer.place(order, hole, kMaxBytes);
            if (offsets.empty() && !sections.blocks.empty()) continue;
            int64_t got = arena_of(sections, offsets);
            if (got < arena) {
                arena = got;
                best = offsets;
            }
            if (arena <= enough) return best;
        }
    return best;
}

int64_t improve(const Sections& sections, int64_t enough, uint64_t seed, int64_t max_steps,
                const ShouldStop& should_stop, std::vector<int64_t>& offsets) {
    Placer placer(sections);
    Random random(seed);
    int n = static_cast<int>(sections.blocks.size());
    int64_t steps = 0, arena = arena_of(sections, offsets);
    std::vector<int> order = descending(sections, [](const Block& b) { return static_cast<double>(b.size); });
    std::vector<int> rank(n), trial;
    std::vector<double> key(n), kept(n);
    for (int k = 0; k < n; k++) kept[order[k]] = k;
    int64_t best_arena = arena, current = INT64_MAX;
    std::vector<int> tops;
    const std::vector<int64_t>* now = &placer.place(order, Hole::smallest, kMaxBytes);
    if (now->empty()) return n;
    current = arena_of(sections, *now);
    for (int i = 0; i < n; i++)
        if ((*now)[i] + sections.blocks[i].size == current) tops.push_back(i);
    while (best_arena > enough && steps < max_steps && !(should_stop && should_stop())) {
        key = kept;
        int moves = 1 + static_cast<int>(random.below(3));
        for (int m = 0; m < moves; m++) {
            int i = tops[random.below(tops.size())];
            const Block& b = sections.blocks[i];
            if (random.below(3) == 0 && b.near_end > b.near_begin)
                i = sections
                        .near[b.near_begin +
                              static_cast<int>(random.below(static_cast<uint64_t>(b.near_end - b.near_begin)))]
                        .block;
            key[i] *= random.unit();
        }
        trial.resize(n);
        std::iota(trial.begin(), trial.end(), 0);
        std::sort(trial.begin(), trial.end(), [&](int a, int b) { return std::tie(key[a], a) < std::tie(key[b], b); });
        const std::vector<int64_t>& got =
            placer.place(trial, random.below(4) ? Hole::smallest : Hole::lowest, kMaxBytes);
        steps += n;
        int64_t size = got.empty() ? INT64_MAX : arena_of(sections, got);
        if (size > current) continue;
        current = size;
        for (int k = 0; k < n; k++) kept[trial[k]] = k;
        tops.clear();
        for (int i = 0; i < n; i++)
            if (got[i] + sections.blocks[i].size == size) tops.push_back(i);
        if (size < best_arena) {
            best_arena = size;
            offsets = got;
        }
    }
    return steps;
}

}  // namespace sublet
