// Live bytes after a set of nodes are a submodular function of the set. Some steps therefore need no alternative:
//
//   Let S be a set already run, and Q further nodes able to run within the budget, with no set between S and S + Q
//   having fewer live bytes than S + Q. If any order from S on stays within the budget, an order running Q first does.
//
// Proof: live(T + Q) <= live(T) + live(S + Q) - live(T n (S + Q)) <= live(T) for every later set T. A result able to
// overwrite an operand still can, because more readers have run. Backwards the same holds for removed sets: if a later
// reader now prevents overwriting an operand, the operand is in the difference.
//
// The search tries Q of two forms: a node without growth of live bytes; and a node followed by nodes made ready by it,
// always a node without growth, or the only ready node, until live bytes are back at the start.
#include "descent.hpp"

#include <algorithm>
#include <cstring>

namespace sublet::ordering {

namespace {

using Word = uint64_t;

// Hash set of node sets, stored as full bit sets: a hash collision never hides an unvisited set.
class Visited {
public:
    explicit Visited(size_t words) : words(words) { grow(1 << 10); }

    bool add(const std::vector<Word>& bits) {
        if (2 * (count + 1) > capacity) grow(2 * capacity);
        return put(bits.data());
    }

private:
    size_t words, capacity = 0, count = 0;
    std::vector<Word> keys;
    std::vector<char> used;

    bool put(const Word* bits) {
        Word hash = 0x9E3779B97F4A7C15u;
        for (size_t i = 0; i < words; i++) {
            hash = (hash ^ bits[i]) * 0xBF58476D1CE4E5B9u;
            hash ^= hash >> 29;
        }
        for (size_t at = hash & (capacity - 1);; at = (at + 1) & (capacity - 1)) {
            if (!used[at]) {
                used[at] = 1;
                std::copy(bits, bits + words, &keys[at * words]);
                count++;
                return true;
            }
            if (std::equal(bits, bits + words, &keys[at * words])) return false;
        }
    }

    void grow(size_t to) {
        std::vector<Word> old_keys(to * words);
        std::vector<char> old_used(to, 0);
        keys.swap(old_keys), used.swap(old_used);
        const size_t before = capacity;
        capacity = to, count = 0;
        for (size_t at = 0; at < before; at++)
            if (old_used[at]) put(&old_keys[at * words]);
    }
};

class Descent {
public:
    Descent(const Problem& problem, int64_t budget, bool back, int64_t& steps, int64_t most,
            const std::function<bool()>& stop)
        : p(problem), state(problem), budget(budget), back(back), steps(steps), most(most), stop(stop),
          words((problem.nodes() + 63) / 64), bits(words, 0), ready(words, 0), visited(words) {
        if (back)
            for (int j = 0; j < p.nodes(); j++) place_first();
        for (int j = 0; j < p.nodes(); j++) renew(j);
    }

    Answer answer() {
        const bool found = descend();
        if (found) {
            if (back) std::reverse(path.begin(), path.end());
            return {Outcome::found, path};
        }
        return {ended ? Outcome::ended : Outcome::none, {}};
    }

private:
    const Problem& p;
    State state;
    const int64_t budget;
    const bool back;
    int64_t& steps;
    const int64_t most;
    const std::function<bool()>& stop;
    const size_t words;
    std::vector<Word> bits, ready;
    Visited visited;
    std::vector<int> path;
    bool ended = false;

    // A backward search starts with all nodes run: runs the first ready node.
    void place_first() {
        for (int j = 0; j < p.nodes(); j++)
            if (!state.done[j] && state.waits[j] == 0) return state.run(j);
    }

    // Updates the ready bit of node j: able to run, or, backwards, able to be taken back.
    void renew(int j) {
        const bool is = back ? state.done[j] && state.held[j] == 0 : !state.done[j] && state.waits[j] == 0;
        const Word bit = Word{1} << (j & 63);
        if (is) ready[j >> 6] |= bit;
        else ready[j >> 6] &= ~bit;
    }

    void renew_around(int j) {
        renew(j);
        for (int k : p.after[j]) renew(k);
        for (int k : p.before[j]) renew(k);
    }

    void apply(int j) {
        if (back) state.take_back(j);
        else state.run(j);
        bits[j >> 6] |= Word{1} << (j & 63);
        path.push_back(j);
        renew_around(j);
    }

    void retract(size_t to) {
        while (path.size() > to) {
            const int j = path.back();
            path.pop_back();
            bits[j >> 6] &= ~(Word{1} << (j & 63));
            if (back) state.run(j);
            else state.take_back(j);
            renew_around(j);
        }
    }

    int64_t growth(int j) const { return back ? -state.net(j) : state.net(j); }

    template <class Takes> int first(const std::vector<Word>& among, Takes takes) const {
        for (size_t i = 0; i < words; i++)
            for (Word left = among[i]; left; left &= left - 1) {
                const int j = static_cast<int>(64 * i) + __builtin_ctzll(left);
                if (takes(j)) return j;
            }
        return -1;
    }

    // True if node j causes no growth of live bytes and fits within the budget while running.
    bool free(int j) const { return growth(j) <= 0 && state.during(j) <= budget; }

    // Runs node j and nodes made ready by j until live bytes are back at the start; undoes all on failure.
    bool pays_back(int j) {
        const int64_t start = state.live;
        const size_t mark = path.size();
        const std::vector<Word> known = ready;
        std::vector<Word> fresh(words);
        apply(j);
        while (state.live > start) {
            int count = 0;
            for (size_t i = 0; i < words; i++) {
                fresh[i] = ready[i] & ~known[i];
                count += __builtin_popcountll(fresh[i]);
            }
            int next = first(fresh, [&](int k) { return free(k); });
            if (next < 0 && count == 1) next = first(fresh, [&](int k) { return state.during(k) <= budget; });
            if (next < 0) {
                retract(mark);
                return false;
            }
            apply(next);
        }
        return true;
    }

    // Runs all nodes without an alternative.
    void advance() {
        for (;;) {
            const int j = first(ready, [&](int k) { return free(k); });
            if (j >= 0) {
                apply(j);
                continue;
            }
            const std::vector<Word> now = ready;
            if (first(now, [&](int k) { return state.during(k) <= budget && pays_back(k); }) < 0) return;
        }
    }

    // Depth-first search over sets of nodes, smallest growth first; true if all nodes have run.
    bool descend() {
        const size_t mark = path.size();
        advance();
        if (path.size() == static_cast<size_t>(p.nodes())) return true;
        if (visited.add(bits)) {
            steps++;
            ended |= steps >= most || (steps % 1024 == 0 && stop());
            std::vector<std::pair<int64_t, int>> next;
            first(ready, [&](int j) {
                if (state.during(j) <= budget) next.emplace_back(growth(j), j);
                return false;
            });
            std::sort(next.begin(), next.end());
            for (const auto& [grown, j] : next) {
                if (ended) break;
                const size_t here = path.size();
                apply(j);
                if (descend()) return true;
                retract(here);
            }
        }
        retract(mark);
        return false;
    }
};

}  // namespace

Answer within(const Problem& problem, int64_t budget, int64_t& steps, int64_t most,
              const std::function<bool()>& stop) {
    if (problem.nodes() > most_nodes) return {Outcome::ended, {}};
    if (at_start(problem) > budget) return {Outcome::none, {}};
    for (int64_t turn = 256;; turn *= 4) {
        for (bool back : {false, true}) {
            const int64_t last = std::min(most, steps + turn);
            Answer answer = Descent(problem, budget, back, steps, last, stop).answer();
            if (answer.outcome != Outcome::ended || stop()) return answer;
        }
        if (steps >= most) return {Outcome::ended, {}};
    }
}

}  // namespace sublet::ordering
