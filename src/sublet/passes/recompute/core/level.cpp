#include "level.hpp"

#include <algorithm>

namespace sublet::recompute {

void Timeline::work_out(const Level& level, const Clones& clones) {
    lay_out(level, clones);
    find_idle(level);
    count(level);
}

void Timeline::lay_out(const Level& level, const Clones& clones) {
    const int blocks = static_cast<int>(level.nbytes.size());
    node.clear(), slot.clear(), contents.clear();
    reads.clear(), born.clear();
    reads_at.assign(1, 0), born_at.assign(1, 0);
    several.assign(level.nodes(), 0);
    for (int j = 0; j < level.nodes(); j++) several[j] = level.offloads(j);
    newest.assign(blocks, -1);
    const auto fill = [&](int b, int moment, bool kept) {
        const int number = static_cast<int>(contents.size());
        contents.push_back({b, moment, -1, newest[b], kept});
        return newest[b] = number;
    };
    for (int b = 0; b < blocks; b++)
        if (level.maker[b] < 0) fill(b, -1, level.kept[b] != 0);
    const auto run = [&](int j, int r) {
        const bool original = j == r;
        const int moment = static_cast<int>(node.size());
        node.push_back(j), slot.push_back(r);
        for (int b : original ? level.read[j] : level.cloned[j]) reads.push_back(newest[b]);
        for (int b : original ? level.born[j] : level.renewed[j])
            born.push_back(fill(b, moment, original && level.kept[b]));
        reads_at.push_back(static_cast<int>(reads.size()));
        born_at.push_back(static_cast<int>(born.size()));
    };
    for (int r = 0; r < level.nodes(); r++) {
        for (int j : clones[r]) run(j, r), several[j] = 1;
        run(r, r);
    }
}

void Timeline::find_idle(const Level&) {
    const int moments = static_cast<int>(node.size());
    idle.assign(moments, 0);
    wanted.assign(contents.size(), 0);
    for (int m = moments - 1; m >= 0; m--) {
        bool needed = !several[node[m]];
        for (int i = born_at[m]; i < born_at[m + 1] && !needed; i++) needed = wanted[born[i]] || contents[born[i]].kept;
        if (!needed) {
            idle[m] = 1;
            continue;
        }
        for (int i = reads_at[m]; i < reads_at[m + 1]; i++) {
            wanted[reads[i]] = 1;
            contents[reads[i]].last = std::max(contents[reads[i]].last, m);
        }
    }
}

void Timeline::count(const Level& level) {
    const int moments = static_cast<int>(node.size());
    live.assign(moments, 0);
    peak = cost = 0;
    int64_t now = level.steady;
    for (int m = 0; m < moments; m++) {
        if (idle[m]) {
            live[m] = 0;
            continue;
        }
        const int j = node[m];
        const bool original = j == slot[m];
        cost += level.cost[j];
        ending.clear();
        int64_t ended = 0, made = original ? 0 : level.wasted[j], unread = 0, saved = 0;
        for (int i = reads_at[m]; i < reads_at[m + 1]; i++) {
            const Content& content = contents[reads[i]];
            if (content.last == m && !content.kept) {
                ending.push_back(content.block);
                ended += level.nbytes[content.block];
            }
        }
        for (int i = born_at[m]; i < born_at[m + 1]; i++) {
            const Content& content = contents[born[i]];
            made += level.nbytes[content.block];
            if (content.last < 0 && !content.kept) unread += level.nbytes[content.block];
        }
        const std::vector<int>& over = level.over[j];
        taking.clear();
        for (size_t i = 0; i < over.size() && !ending.empty(); i += 2) {
            const auto found = std::find(ending.begin(), ending.end(), over[i + 1]);
            if (found == ending.end()) continue;
            const bool part = level.nbytes[over[i + 1]] < level.nbytes[over[i]];  // a concatenation has several
            if (!part && std::find(taking.begin(), taking.end(), over[i]) != taking.end()) continue;
            saved += level.nbytes[over[i + 1]];
            ending.erase(found);
            taking.push_back(over[i]);
        }
        if (original)
            for (size_t i = 0; i < level.at_home[j].size(); i += 2)
                for (int k = reads_at[m]; k < reads_at[m + 1]; k++) {
                    const Content& content = contents[reads[k]];
                    if (content.block == level.at_home[j][i + 1] && content.last == m)
                        made -= level.nbytes[level.at_home[j][i]];
                }
        live[m] = now + made - saved + level.extra[j];
        now += made - ended - unread - (original ? 0 : level.wasted[j]);
        peak = std::max(peak, live[m]);
    }
}

int64_t Timeline::excess(int64_t budget) const {
    int64_t total = 0, worst = 0;
    for (size_t m = 0; m < live.size(); m++) {
        worst = std::max(worst, live[m] - budget);
        if (m + 1 == live.size() || slot[m + 1] != slot[m]) total += worst, worst = 0;
    }
    return total;
}

int Timeline::seen(int block, int moment) const {
    int number = newest[block];
    while (number >= 0 && contents[number].made >= moment) number = contents[number].before;
    return number;
}

int Timeline::moment_of(int j, int r) const {
    auto at = std::lower_bound(slot.begin(), slot.end(), r) - slot.begin();
    while (node[at] != j) at++;
    return static_cast<int>(at);
}

}  // namespace sublet::recompute
