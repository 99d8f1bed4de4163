#include <algorithm>

#include "search.hpp"

namespace sublet::recompute {

namespace {

constexpr int DEPTHS[] = {0, 1, 2, 3, 5, 8, 13, 1 << 20};
constexpr int TRIED = 12;       // moves that are evaluated, of those that look best
constexpr int64_t LEAST = 100;  // nanoseconds: what costs next to nothing is not infinitely good

struct Move {
    double score;
    int slot;
    std::vector<int> nodes;
};

bool has(const Clones& clones, int j, int r) { return std::binary_search(clones[r].begin(), clones[r].end(), j); }

void add(Clones& clones, int j, int r) {
    std::vector<int>& at = clones[r];
    const auto place = std::lower_bound(at.begin(), at.end(), j);
    if (place == at.end() || *place != j) at.insert(place, j);
}

struct Reducing {
    const Level& level;
    int64_t budget;
    const Clones& clones;
    const Timeline& now;
    std::vector<Rows> unused;

    // What is above the budget less when a block is not alive between two moments.
    int64_t relief(int64_t nbytes, int from, int to) const {
        int64_t total = 0;
        for (int m = from + 1; m < to; m++)
            if (now.live[m] > budget) total += std::min(now.live[m] - budget, nbytes);
        return total;
    }

    // What is above it more when it is.
    int64_t burden(int64_t nbytes, int from, int to) const {
        int64_t total = 0;
        for (int m = from + 1; m < to; m++)
            if (!now.idle[m])
                total += std::max<int64_t>(now.live[m] + nbytes - budget, 0) - std::max<int64_t>(now.live[m] - budget, 0);
        return total;
    }

    bool may(int j, int r) const { return j >= 0 && j < r && r <= level.latest[j] && !level.offloads(r); }

    // What an offload costs that is not made yet; any other node runs anyway.
    int64_t first_time(int j) const {
        return level.offloads(j) && std::none_of(clones.begin(), clones.end(), [&](const std::vector<int>& at) {
                   return std::binary_search(at.begin(), at.end(), j);
               })
                   ? level.cost[j]
                   : 0;
    }

    // Node j once more before the reader, with those it needs, `depth` steps back; the rest is kept for it.
    Move move(int j, int moment, int64_t gained, int depth) const {
        const int r = now.slot[moment];
        Move found{0, r, {j}};
        int64_t cost = level.cost[j] + first_time(j);
        std::vector<std::pair<int, int>> todo{{j, 0}};
        while (!todo.empty()) {
            const auto [node, far] = todo.back();
            todo.pop_back();
            for (int block : level.cloned[node]) {
                const int64_t nbytes = level.nbytes[block];
                if (nbytes == 0) continue;
                const int number = now.seen(block, moment);
                if (number < 0) continue;
                const Content& content = now.contents[number];
                if (content.kept || content.last >= moment) continue;
                const int maker = level.maker[block];
                if (std::find(found.nodes.begin(), found.nodes.end(), maker) != found.nodes.end()) continue;
                if (far < depth && may(maker, r) && !has(clones, maker, r)) {
                    found.nodes.push_back(maker);
                    cost += level.cost[maker];
                    todo.emplace_back(maker, far + 1);
                } else {
                    gained -= burden(nbytes, std::max(content.last, content.made), moment);
                }
            }
        }
        found.score = static_cast<double>(gained) / static_cast<double>(std::max(cost, LEAST));
        return found;
    }

    // Node j before the reader: alone, and with what it needs.
    void again(int j, int moment, int64_t gained, std::vector<Move>& found) const {
        if (!may(j, now.slot[moment]) || has(clones, j, now.slot[moment])) return;
        size_t before = 0;
        for (int depth : DEPTHS) {
            Move next = move(j, moment, gained, depth);
            if (next.nodes.size() == before) break;
            before = next.nodes.size();
            if (next.score > 0) found.push_back(std::move(next));
        }
    }

    std::vector<Move> moves() const {
        Rows readers(now.contents.size());
        for (size_t m = 0; m < now.node.size(); m++)
            if (!now.idle[m])
                for (int i = now.reads_at[m]; i < now.reads_at[m + 1]; i++)
                    readers[now.reads[i]].push_back(static_cast<int>(m));
        std::vector<Move> found;
        for (size_t number = 0; number < now.contents.size(); number++) {
            const Content& content = now.contents[number];
            const int64_t nbytes = level.nbytes[content.block];
            if (nbytes == 0 || content.kept) continue;
            int from = content.made;
            for (int moment : readers[number]) {
                const int64_t gained = moment > from + 1 ? relief(nbytes, from, moment) : 0;
                if (gained > 0) {
                    again(level.maker[content.block], moment, gained, found);
                    again(level.away[content.block], moment, gained, found);
                }
                from = moment;
            }
        }
        return found;
    }
};

}  // namespace

void tidy(const Level& level, Clones& clones, Timeline& timeline) {
    timeline.work_out(level, clones);
    for (auto& at : clones) at.clear();
    for (size_t m = 0; m < timeline.node.size(); m++)
        if (timeline.node[m] != timeline.slot[m] && !timeline.idle[m])
            clones[timeline.slot[m]].push_back(timeline.node[m]);
}

bool reduce(const Level& level, int64_t budget, Clones& clones, int64_t& steps, int64_t most) {
    Timeline now, then;
    while (steps < most) {
        tidy(level, clones, now);
        steps++;
        if (now.peak <= budget) return true;
        const int64_t excess = now.excess(budget);
        std::vector<Move> moves = Reducing{level, budget, clones, now, {}}.moves();
        std::stable_sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) { return a.score > b.score; });
        double best = 0;
        int chosen = -1, tried = 0;
        for (size_t i = 0; i < moves.size() && (tried < TRIED || chosen < 0); i++, tried++) {
            Clones changed = clones;
            for (int j : moves[i].nodes) add(changed, j, moves[i].slot);
            then.work_out(level, changed);
            steps++;
            const double less = static_cast<double>(excess - then.excess(budget));
            const double score = less / static_cast<double>(std::max(then.cost - now.cost, LEAST));
            if (less > 0 && score > best) best = score, chosen = static_cast<int>(i);
        }
        if (chosen < 0) return false;
        for (int j : moves[chosen].nodes) add(clones, j, moves[chosen].slot);
    }
    return false;
}

}  // namespace sublet::recompute
