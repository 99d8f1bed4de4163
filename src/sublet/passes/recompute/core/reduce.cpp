#include <algorithm>
#include <map>
#include <utility>

#include "search.hpp"

namespace sublet::recompute {

namespace {

constexpr int DEPTHS[] = {0, 1, 2, 3, 5, 8, 13, 1 << 20};  // tried lengths of recomputed chains
constexpr int TRIED = 12;        // number of best-scored moves to evaluate exactly
constexpr int TRIED_AGAIN = 2;   // the same for randomized runs
constexpr uint64_t SEEN = 2;     // randomized runs consider one in SEEN moves
constexpr size_t LARGEST = 128;  // maximum nodes of a move: checkpoints cover longer chains
constexpr int64_t LEAST = 100;   // minimum cost in nanoseconds: keeps the score of free moves finite

struct Move {
    double score;
    int slot;
    std::vector<int> nodes;
};

bool has(const Clones& clones, int j, int r) { return std::binary_search(clones[r].begin(), clones[r].end(), j); }

// Prefix sums over moments for blocks of a size: `relief` is the decrease of the bytes above the budget without a block
// of the size, `burden` the increase with one more block. Entry m covers the moments before m.
struct Sums {
    std::vector<int64_t> relief, burden;

    Sums(const Timeline& now, int64_t budget, int64_t nbytes) : relief{0}, burden{0} {
        for (size_t m = 0; m < now.live.size(); m++) {
            const int64_t above = now.live[m] - budget;
            const int64_t more = std::max<int64_t>(above + nbytes, 0) - std::max<int64_t>(above, 0);
            relief.push_back(relief.back() + std::clamp<int64_t>(above, 0, nbytes));
            burden.push_back(burden.back() + (now.idle[m] ? 0 : more));
        }
    }
};

struct Reducing {
    const Level& level;
    const Clones& clones;
    const Timeline& now;
    int64_t budget;
    std::map<int64_t, Sums> by_size;
    std::vector<int> above{0};  // entry m: number of moments before m above the budget
    std::vector<int> found_at;  // by node: the last move containing the node
    int moves_made = 0;

    Reducing(const Level& level, int64_t budget, const Clones& clones, const Timeline& now)
        : level(level), clones(clones), now(now), budget(budget), found_at(level.nodes(), 0) {
        for (const int64_t live : now.live) above.push_back(above.back() + (live > budget));
    }

    const Sums& sums(int block) {
        const int64_t nbytes = level.nbytes[block];
        return by_size.try_emplace(nbytes, now, budget, nbytes).first->second;
    }

    // Decrease of the bytes above the budget if the block is dead between two moments.
    int64_t relief(int block, int from, int to) {
        return from + 1 < to && above[to] > above[from + 1] ? between(sums(block).relief, from, to) : 0;
    }

    // Increase of the bytes above the budget if the block is live between two moments.
    int64_t burden(int block, int from, int to) { return between(sums(block).burden, from, to); }

    static int64_t between(const std::vector<int64_t>& before, int from, int to) {
        return from + 1 < to ? before[to] - before[from + 1] : 0;
    }

    bool may(int j, int r) const { return j >= 0 && j < r && r <= level.latest[j] && !level.offloads(r); }

    // Cost of the offload itself, if not yet in use; any other original node runs anyway.
    int64_t first_time(int j) const {
        return level.offloads(j) && std::none_of(clones.begin(), clones.end(), [&](const std::vector<int>& at) {
                   return std::binary_search(at.begin(), at.end(), j);
               })
                   ? level.cost[j]
                   : 0;
    }

    // Returns the move cloning node j before the reader, with dead operands cloned too, up to `depth` steps back;
    // deeper operands are kept live instead.
    Move move(int j, int moment, int64_t gained, int depth) {
        const int r = now.slot[moment];
        found_at[j] = ++moves_made;
        Move found{0, r, {j}};
        int64_t cost = level.cost[j] + first_time(j);
        std::vector<std::pair<int, int>> todo{{j, 0}};
        while (!todo.empty() && found.nodes.size() <= LARGEST) {
            const auto [node, far] = todo.back();
            todo.pop_back();
            for (int block : level.cloned[node]) {
                if (level.nbytes[block] == 0) continue;
                const int number = now.seen(block, moment);
                if (number < 0) continue;
                const Content& content = now.contents[number];
                if (content.kept || content.last >= moment) continue;
                const int maker = level.maker[block];
                if (maker >= 0 && found_at[maker] == moves_made) continue;
                if (far < depth && may(maker, r) && !has(clones, maker, r)) {
                    found.nodes.push_back(maker);
                    found_at[maker] = moves_made;
                    cost += level.cost[maker];
                    todo.emplace_back(maker, far + 1);
                } else {
                    gained -= burden(block, std::max(content.last, content.made), moment);
                }
            }
        }
        found.score = static_cast<double>(gained) / static_cast<double>(std::max(cost, LEAST));
        return found;
    }

    // Adds the moves cloning node j as late as legal before the reader of a block, for all depths.
    void again(int j, int block, int from, int reader, std::vector<Move>& found) {
        if (j < 0) return;
        const int slot = std::min(now.slot[reader], level.latest[j]);
        if (!may(j, slot) || has(clones, j, slot)) return;
        const int moment = slot < now.slot[reader] ? now.moment_of(slot, slot) : reader;
        const int64_t gained = relief(block, from, moment);
        if (gained <= 0) return;
        size_t before = 0;
        for (int depth : DEPTHS) {
            Move next = move(j, moment, gained, depth);
            if (next.nodes.size() == before || next.nodes.size() > LARGEST) break;
            before = next.nodes.size();
            if (next.score > 0) found.push_back(std::move(next));
        }
    }

    // Returns all moves: for each reader, recompute or reload the block instead of keeping it since the last reader.
    std::vector<Move> moves() {
        std::vector<int> before;  // by content: the last reader so far
        for (const Content& content : now.contents) before.push_back(content.made);
        std::vector<Move> found;
        for (int m = 0; m < static_cast<int>(now.node.size()); m++) {
            if (now.idle[m]) continue;
            for (int i = now.reads_at[m]; i < now.reads_at[m + 1]; i++) {
                const Content& content = now.contents[now.reads[i]];
                const int block = content.block, from = std::exchange(before[now.reads[i]], m);
                if (level.nbytes[block] == 0 || content.kept || relief(block, from, m) <= 0) continue;
                again(level.maker[block], block, from, m, found);
                again(level.away[block], block, from, m, found);
            }
        }
        return found;
    }
};

}  // namespace

bool put_in(Clones& clones, int j, int r) {
    std::vector<int>& at = clones[r];
    const auto place = std::lower_bound(at.begin(), at.end(), j);
    if (place != at.end() && *place == j) return false;
    at.insert(place, j);
    return true;
}

bool take_out(Clones& clones, int j, int r) {
    std::vector<int>& at = clones[r];
    const auto place = std::lower_bound(at.begin(), at.end(), j);
    if (place == at.end() || *place != j) return false;
    at.erase(place);
    return true;
}

void tidy(const Level& level, Clones& clones, Timeline& timeline) {
    timeline.work_out(level, clones);
    for (auto& at : clones) at.clear();
    for (size_t m = 0; m < timeline.node.size(); m++)
        if (timeline.node[m] != timeline.slot[m] && !timeline.idle[m])
            clones[timeline.slot[m]].push_back(timeline.node[m]);
}

bool reduce(const Level& level, int64_t budget, Clones& clones, int64_t& steps, int64_t most, Random* random) {
    Timeline now, then;
    std::vector<int> added;
    while (steps < most) {
        tidy(level, clones, now);
        steps++;
        if (now.peak <= budget) return true;
        const int64_t excess = now.excess(budget);
        std::vector<Move> moves = Reducing(level, budget, clones, now).moves();
        std::stable_sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) { return a.score > b.score; });
        double best = 0;
        int chosen = -1, tried = 0;
        for (size_t i = 0; i < moves.size() && (tried < (random ? TRIED_AGAIN : TRIED) || chosen < 0); i++) {
            if (random && random->below(SEEN)) continue;
            tried++;
            added.clear();
            for (int j : moves[i].nodes)
                if (put_in(clones, j, moves[i].slot)) added.push_back(j);
            then.work_out(level, clones);
            steps++;
            for (int j : added) take_out(clones, j, moves[i].slot);
            const double less = static_cast<double>(excess - then.excess(budget));
            const double score = less / static_cast<double>(std::max(then.cost - now.cost, LEAST));
            if (less > 0 && score > best) best = score, chosen = static_cast<int>(i);
        }
        if (chosen < 0) return false;
        for (int j : moves[chosen].nodes) put_in(clones, j, moves[chosen].slot);
    }
    return false;
}

}  // namespace sublet::recompute
