#include <algorithm>

#include "problem.hpp"

namespace sublet::ordering {

int64_t at_start(const Problem& p) {
    int64_t live = p.base;
    for (int a = 0; a < p.atoms(); a++)
        if (p.maker[a] < 0) live += p.size[a];
    return live;
}

State::State(const Problem& p)
    : live(at_start(p)), done(p.nodes(), 0), waits(p.nodes()), held(p.nodes(), 0), problem(p), left(p.atoms()) {
    for (int j = 0; j < p.nodes(); j++) waits[j] = static_cast<int>(p.before[j].size());
    for (int a = 0; a < p.atoms(); a++) left[a] = static_cast<int>(p.readers[a].size());
}

int64_t State::net(int j) const {
    const Problem& p = problem;
    const int last = done[j] ? 0 : 1;
    int64_t more = 0;
    for (int a : p.born[j])
        if (p.kept[a] || !p.readers[a].empty()) more += p.size[a];
    for (int a : p.read[j])
        if (left[a] == last && !p.kept[a]) more -= p.size[a];
    return more;
}

int64_t State::during(int j) const {
    const Problem& p = problem;
    const int last = done[j] ? 0 : 1;
    int64_t bytes = done[j] ? live - net(j) : live;
    for (int a : p.born[j]) bytes += p.size[a];
    for (const Slot& slot : p.over[j]) {
        int64_t most = 0;
        for (const auto& operand : slot.operands) {
            int64_t ending = 0;
            for (int a : operand)
                if (left[a] == last && !p.kept[a]) ending += p.size[a];
            most = std::max(most, std::min(ending, slot.nbytes));
        }
        bytes -= most;
    }
    return bytes + p.extra[j];
}

void State::run(int j) {
    live += net(j);
    done[j] = 1;
    for (int a : problem.read[j]) left[a]--;
    for (int k : problem.after[j]) waits[k]--;
    for (int k : problem.before[j]) held[k]++;
}

void State::take_back(int j) {
    live -= net(j);
    done[j] = 0;
    for (int a : problem.read[j]) left[a]++;
    for (int k : problem.after[j]) waits[k]++;
    for (int k : problem.before[j]) held[k]--;
}

std::vector<int64_t> curve(const Problem& p, const std::vector<int>& order) {
    State state(p);
    std::vector<int64_t> found;
    found.reserve(order.size());
    for (int j : order) {
        found.push_back(state.during(j));
        state.run(j);
    }
    return found;
}

Problem window(const Problem& p, const std::vector<int>& order, int begin, int end) {
    std::vector<int> place(p.nodes()), atom(p.atoms(), -1);
    for (size_t i = 0; i < order.size(); i++) place[order[i]] = static_cast<int>(i);
    State state(p);
    for (int i = 0; i < begin; i++) state.run(order[i]);
    const int n = end - begin;
    const auto inside = [&](int j) { return place[j] >= begin && place[j] < end; };
    Problem w;
    w.base = state.live;
    w.before.resize(n), w.after.resize(n), w.born.resize(n), w.read.resize(n), w.over.resize(n), w.extra.resize(n);
    const auto local = [&](int a) {
        if (atom[a] >= 0) return atom[a];
        atom[a] = w.atoms();
        const bool made = p.maker[a] >= 0 && inside(p.maker[a]);
        std::vector<int> readers;
        bool later = p.kept[a];
        for (int r : p.readers[a]) {
            if (inside(r)) readers.push_back(place[r] - begin);
            later |= place[r] >= end;
        }
        w.size.push_back(p.size[a]);
        w.kept.push_back(later);
        w.maker.push_back(made ? place[p.maker[a]] - begin : -1);
        w.readers.push_back(std::move(readers));
        if (!made) w.base -= p.size[a];
        return atom[a];
    };
    for (int i = 0; i < n; i++) {
        const int j = order[begin + i];
        for (int k : p.before[j])
            if (inside(k)) w.before[i].push_back(place[k] - begin);
        for (int k : p.after[j])
            if (inside(k)) w.after[i].push_back(place[k] - begin);
        for (int a : p.born[j]) w.born[i].push_back(local(a));
        for (int a : p.read[j]) w.read[i].push_back(local(a));
        for (const Slot& slot : p.over[j]) {
            Slot copy{slot.nbytes, {}};
            for (const auto& operand : slot.operands) {
                copy.operands.emplace_back();
                for (int a : operand) copy.operands.back().push_back(local(a));
            }
            w.over[i].push_back(std::move(copy));
        }
        w.extra[i] = p.extra[j];
    }
    return w;
}

}  // namespace sublet::ordering
