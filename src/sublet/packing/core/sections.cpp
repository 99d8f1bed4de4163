#include "sections.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <tuple>

#include "placing.hpp"

namespace sublet {
namespace {

int64_t saturated_sum(int64_t a, int64_t b) {
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

// Offsets that are multiples of both; beyond kMaxBytes only offset 0 is left, and any such number says so.
int64_t common_alignment(int64_t a, int64_t b) {
    __int128 product = static_cast<__int128>(a) / std::gcd(a, b) * b;
    return product > kMaxBytes ? kMaxBytes : static_cast<int64_t>(product);
}

// Items joined by companions, each with the runs of its items.
struct Draft {
    std::vector<Block> blocks;
    std::vector<std::vector<Run>> runs;
};

Draft join_companions(const Problem& problem, Sections& out) {
    Draft draft;
    std::vector<int> leader = leaders_of(problem);
    std::vector<char> sized(problem.items.size(), 0);
    std::vector<int64_t> pin(problem.items.size(), -1);  // of each leader's companions
    for (size_t item = 0; item < leader.size(); item++) {
        const Item& it = problem.items[item];
        if (it.shift) throw std::invalid_argument("sections: companions at one offset only");
        int64_t& pinned = pin[leader[item]];
        sized[leader[item]] |= it.size > 0;
        if (it.pinned >= 0 && pinned >= 0 && it.pinned != pinned)
            out.contradiction = "companions are pinned to different offsets";
        pinned = std::max(pinned, it.pinned);
    }
    out.block_of.assign(problem.items.size(), -1);
    out.offset_of_empty.assign(problem.items.size(), 0);
    for (size_t item = 0; item < leader.size(); item++) {
        const Item& it = problem.items[item];
        int64_t pinned = pin[leader[item]];
        if (pinned >= 0 && pinned % it.alignment)
            out.contradiction = "a pinned offset is not a multiple of the alignment";
        if (!sized[leader[item]]) {
            out.offset_of_empty[item] = std::max<int64_t>(0, pinned);
            continue;
        }
        int& block = out.block_of[leader[item]];
        if (block < 0) {
            block = static_cast<int>(draft.blocks.size());
            draft.blocks.emplace_back();
            draft.runs.emplace_back();
        }
        out.block_of[item] = block;
        Block& b = draft.blocks[block];
        b.size = std::max(b.size, it.size);
        b.alignment = common_alignment(b.alignment, it.alignment);
        b.pinned = pinned;
        if (it.size > 0)
            for (auto [begin, end] : it.pieces) b.lived = saturated_sum(b.lived, end - begin);
    }
    return draft;
}

void append_run(std::vector<Run>& runs, Run run) {
    if (run.begin == run.end) return;
    if (!runs.empty() && runs.back().end == run.begin && runs.back().size == run.size)
        runs.back().end = run.end;
    else
        runs.push_back(run);
}

// Sweeps over time; a section ends where something ends after something has begun (a maximal live set).
void cut_time(const Problem& problem, Draft& draft, Sections& out) {
    struct Event {
        int64_t time;
        bool begins;  // at one time, what ends goes first: pieces are half-open
        int item, piece;
        bool operator<(const Event& o) const {
            return std::tie(time, begins, item, piece) < std::tie(o.time, o.begins, o.item, o.piece);
        }
    };
    std::vector<Event> events;
    for (int item = 0; item < static_cast<int>(problem.items.size()); item++) {
        if (problem.items[item].size == 0) continue;
        const auto& pieces = problem.items[item].pieces;
        for (int piece = 0; piece < static_cast<int>(pieces.size()); piece++) {
            events.push_back({pieces[piece].first, true, item, piece});
            events.push_back({pieces[piece].second, false, item, piece});
        }
    }
    std::sort(events.begin(), events.end());
    std::vector<int> begun(problem.items.size());
    bool grew = false;
    for (const Event& e : events) {
        if (e.begins) {
            begun[e.item] = out.count;
            grew = true;
            continue;
        }
        if (grew) out.count++;
        grew = false;
        append_run(draft.runs[out.block_of[e.item]], {begun[e.item], out.count, problem.items[e.item].size});
    }
}

// The sets alive together in the serial order that the pieces of a partial order describe, if they are given.
std::vector<std::vector<int>> live_sets(const Problem& problem) {
    Draft draft;
    Sections serial;
    draft.runs.resize(problem.items.size());
    serial.block_of.resize(problem.items.size());
    std::iota(serial.block_of.begin(), serial.block_of.end(), 0);
    cut_time(problem, draft, serial);
    std::vector<std::vector<int>> sets(serial.count);
    for (int item = 0; item < static_cast<int>(draft.runs.size()); item++)
        for (const Run& run : draft.runs[item])
            for (int s = run.begin; s < run.end; s++) sets[s].push_back(item);
    return sets;
}

// Sections of a partial order: cliques, in the order of the time at which their last member begins.
void cut_conflicts(const Problem& problem, Draft& draft, Sections& out) {
    constexpr size_t kMostEntries = 1 << 18;
    std::vector<std::pair<int, int>> conflicts;
    std::vector<int64_t> sizes;
    std::vector<std::vector<int>> known = live_sets(problem);
    for (const Item& item : problem.items) sizes.push_back(item.size);
    for (auto [a, b] : problem.conflicts)
        if (a != b && sizes[a] > 0 && sizes[b] > 0) conflicts.emplace_back(a, b);
    std::vector<std::vector<int>> cliques = cover_by_cliques(conflicts, sizes, known, kMostEntries, out.covered);
    auto latest = [&](const std::vector<int>& clique) {
        int64_t time = INT64_MIN;
        for (int item : clique)
            if (!problem.items[item].pieces.empty()) time = std::max(time, problem.items[item].pieces.front().first);
        return time;
    };
    std::vector<std::pair<int64_t, int>> order;
    for (size_t k = 0; k < cliques.size(); k++) order.emplace_back(latest(cliques[k]), static_cast<int>(k));
    std::sort(order.begin(), order.end());
    for (auto [time, k] : order) {
        bool used = false;
        for (int item : cliques[k])
            if (sizes[item] > 0) {
                append_run(draft.runs[out.block_of[item]], {out.count, out.count + 1, sizes[item]});
                used = true;
            }
        out.count += used;
    }
}

// Blocks that conflict without sharing a section: their spans are stretched until they meet, so that parts of
// the sections that no span crosses are independent.
void stretch_spans(const Problem& problem, Draft& draft, const Sections& out) {
    for (auto [a, b] : problem.conflicts) {
        if (a == b || !problem.items[a].size || !problem.items[b].size || out.block_of[a] == out.block_of[b]) continue;
        Block *x = &draft.blocks[out.block_of[a]], *y = &draft.blocks[out.block_of[b]];
        if (x->first > y->first) std::swap(x, y);
        x->last = std::max(x->last, y->first + 1);
    }
}

void sort_blocks(const Problem& problem, Draft& draft, Sections& out) {
    int n = static_cast<int>(draft.blocks.size());
    for (int i = 0; i < n; i++) {
        auto& runs = draft.runs[i];
        std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
        for (size_t k = 1; k < runs.size(); k++)
            if (runs[k].begin < runs[k - 1].end) out.contradiction = "companions conflict with each other";
        draft.blocks[i].first = runs.front().begin;
        draft.blocks[i].last = runs.back().end;
    }
    if (!out.covered) stretch_spans(problem, draft, out);
    for (auto [a, b] : problem.conflicts)
        if (a != b && problem.items[a].size && problem.items[b].size && out.block_of[a] == out.block_of[b])
            out.contradiction = "companions conflict with each other";
    std::vector<int> order(n), rank(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return std::tie(draft.blocks[a].first, draft.blocks[a].last) <
               std::tie(draft.blocks[b].first, draft.blocks[b].last);
    });
    for (int k = 0; k < n; k++) rank[order[k]] = k;
    for (int& block : out.block_of)
        if (block >= 0) block = rank[block];
    for (int old : order) {
        Block block = draft.blocks[old];
        block.run_begin = static_cast<int>(out.runs.size());
        out.runs.insert(out.runs.end(), draft.runs[old].begin(), draft.runs[old].end());
        block.run_end = static_cast<int>(out.runs.size());
        out.blocks.push_back(block);
    }
}

void list_members(Sections& out) {
    out.member_begin.assign(out.count + 1, 0);
    for (const Run& run : out.runs)
        for (int s = run.begin; s < run.end; s++) out.member_begin[s + 1]++;
    for (int s = 0; s < out.count; s++) out.member_begin[s + 1] += out.member_begin[s];
    out.members.resize(out.member_begin[out.count]);
    out.member_size.resize(out.members.size());
    std::vector<int> next(out.member_begin.begin(), out.member_begin.end() - 1);
    std::vector<int64_t> load(out.count, 0);
    for (int i = 0; i < static_cast<int>(out.blocks.size()); i++)
        for (int r = out.blocks[i].run_begin; r < out.blocks[i].run_end; r++)
            for (int s = out.runs[r].begin; s < out.runs[r].end; s++) {
                out.members[next[s]] = i;
                out.member_size[next[s]++] = out.runs[r].size;
                load[s] = saturated_sum(load[s], out.runs[r].size);
            }
    for (int64_t l : load) out.peak = std::max(out.peak, l);
}

void list_neighbours(const Problem& problem, Sections& out) {
    std::vector<int> at(out.blocks.size(), -1);
    std::vector<std::vector<Neighbour>> uncovered(out.blocks.size());
    if (!out.covered)
        for (auto [a, b] : problem.conflicts) {
            int64_t x = problem.items[a].size, y = problem.items[b].size;
            if (a == b || !x || !y) continue;
            uncovered[out.block_of[a]].push_back({out.block_of[b], x, y});
            uncovered[out.block_of[b]].push_back({out.block_of[a], y, x});
        }
    // What shares a section with a run is alive at its beginning, or begins within it.
    std::vector<std::vector<std::pair<int, int64_t>>> begun(out.count);
    for (int i = 0; i < static_cast<int>(out.blocks.size()); i++)
        for (int r = out.blocks[i].run_begin; r < out.blocks[i].run_end; r++)
            begun[out.runs[r].begin].emplace_back(i, out.runs[r].size);
    for (int i = 0; i < static_cast<int>(out.blocks.size()); i++) {
        Block& block = out.blocks[i];
        block.near_begin = static_cast<int>(out.near.size());
        auto meet = [&](const Neighbour& other) {
            if (other.block == i) return;
            if (at[other.block] < block.near_begin) {
                at[other.block] = static_cast<int>(out.near.size());
                out.near.push_back({other.block, 0, 0});
            }
            Neighbour& near = out.near[at[other.block]];
            near.mine = std::max(near.mine, other.mine);
            near.theirs = std::max(near.theirs, other.theirs);
        };
        for (int r = block.run_begin; r < block.run_end; r++) {
            const Run& run = out.runs[r];
            for (int m = out.member_begin[run.begin]; m < out.member_begin[run.begin + 1]; m++)
                meet({out.members[m], run.size, out.member_size[m]});
            for (int s = run.begin + 1; s < run.end; s++)
                for (auto [other, size] : begun[s]) meet({other, run.size, size});
        }
        for (const Neighbour& other : uncovered[i]) meet(other);
        block.near_end = static_cast<int>(out.near.size());
        for (int k = block.near_begin; k < block.near_end && block.pinned >= 0; k++) {
            int64_t theirs = out.blocks[out.near[k].block].pinned;
            if (theirs >= block.pinned && theirs - block.pinned < out.near[k].mine)
                out.contradiction = "two pinned buffers that conflict overlap";
        }
    }
}

void link_twins(Sections& out) {
    std::map<std::vector<int64_t>, int> latest;
    for (int i = static_cast<int>(out.blocks.size()) - 1; i >= 0; i--) {
        Block& block = out.blocks[i];
        if (block.pinned >= 0) continue;
        std::vector<int64_t> key{block.alignment};
        for (int r = block.run_begin; r < block.run_end; r++)
            key.insert(key.end(), {out.runs[r].begin, out.runs[r].end, out.runs[r].size});
        auto [found, fresh] = latest.try_emplace(key, i);
        if (!fresh) {
            block.twin = found->second;
            found->second = i;
        }
    }
}

}  // namespace

Sections sections_of(const Problem& problem) {
    Sections out;
    Draft draft = join_companions(problem, out);
    if (problem.partial_order)
        cut_conflicts(problem, draft, out);
    else
        cut_time(problem, draft, out);
    sort_blocks(problem, draft, out);
    list_members(out);
    list_neighbours(problem, out);
    if (out.peak > kMaxBytes) out.contradiction = "more than 2^62 bytes are alive at one time";
    for (const Block& block : out.blocks)
        if (block.pinned > kMaxBytes - block.size) out.contradiction = "a pinned buffer ends beyond 2^62";
    if (out.covered) link_twins(out);  // else equal runs do not mean equal conflicts
    return out;
}

}  // namespace sublet
