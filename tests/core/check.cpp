// The compiled core on thousands of tiny random problems against brute force: gaps, alignment, pins, companions (also
// at distances), partial orders; and on sizes near 2^62. Built with sanitizers by `make fuzz`.   check TRIALS SEED
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <set>
#include <stdexcept>

#include "greedy.hpp"
#include "random.hpp"
#include "repack.hpp"
#include "search.hpp"
using namespace sublet;
static bool conflict(const Problem& p, int a, int b) {
    if (!p.items[a].size || !p.items[b].size) return false;
    if (p.partial_order) {
        for (auto [x, y] : p.conflicts)
            if ((x == a && y == b) || (x == b && y == a)) return true;
        return false;
    }
    for (auto [x, y] : p.items[a].pieces)
        for (auto [u, v] : p.items[b].pieces)
            if (x < v && u < y) return true;
    return false;
}
static bool ok(const Problem& p, const std::vector<int64_t>& o, int64_t cap) {
    int n = p.items.size();
    if ((int)o.size() != n) return false;
    for (int i = 0; i < n; i++) {
        const Item& it = p.items[i];
        if (it.pinned >= 0 && o[i] != it.pinned) return false;
        if (it.size && (o[i] < 0 || o[i] > cap - it.size || (o[i] - it.shift) % it.alignment)) return false;
        for (int j = 0; j < i; j++)
            if (conflict(p, i, j) && o[i] < o[j] + p.items[j].size && o[j] < o[i] + it.size) return false;
    }
    for (auto [a, b] : p.companions)
        if (o[a] - p.items[a].shift != o[b] - p.items[b].shift) return false;
    return true;
}
// Smallest arena by trying every offset of every leader up to `top`, with conflicts checked pair by pair.
static int64_t brute(const Problem& p, int64_t top) {
    int n = p.items.size();
    std::vector<int> leader(n);
    std::iota(leader.begin(), leader.end(), 0);
    for (int k = 0; k < n; k++)
        for (auto [a, b] : p.companions) {
            int m = std::min(leader[a], leader[b]);
            leader[a] = leader[b] = m;
        }
    std::vector<std::vector<char>> con(n, std::vector<char>(n));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) con[i][j] = i != j && conflict(p, i, j);
    std::vector<int64_t> o(n, -1);
    int64_t best = top + 1;
    std::function<void(int, int64_t)> go = [&](int i, int64_t arena) {
        if (arena >= best) return;
        if (i == n) {
            best = arena;
            return;
        }
        const Item& it = p.items[i];
        int64_t lo = 0, hi = top;
        if (leader[i] != i) lo = hi = o[leader[i]];
        if (it.pinned >= 0) {
            if (it.pinned < lo || it.pinned > hi) return;
            lo = hi = it.pinned;
        }
        for (int64_t at = lo; at <= hi; at++) {
            if (at % it.alignment) continue;
            bool good = true;
            for (int j = 0; j < i && good; j++)
                good = !con[i][j] || at >= o[j] + p.items[j].size || o[j] >= at + it.size;
            if (!good) continue;
            o[i] = at;
            go(i + 1, it.size ? std::max(arena, at + it.size) : arena);
        }
        o[i] = -1;
    };
    go(0, 0);
    return best;
}
// Smallest arena, at most `best`, of lifetimes in [0, 8): in the order of their offsets every item lies on what lies
// below it, and what is taken at each moment says all about the items placed.
struct Stacked {
    using Taken = std::array<int64_t, 8>;
    const Problem& p;
    int64_t best;
    int64_t peak = 0;
    std::set<std::pair<Taken, unsigned>> seen;
    int64_t least(const Taken& taken, unsigned left) const {
        Taken top = taken;
        for (size_t i = 0; i < p.items.size(); i++)
            if (left >> i & 1)
                for (auto [b, e] : p.items[i].pieces)
                    for (int64_t t = b; t < e; t++) top[t] += p.items[i].size;
        return *std::max_element(top.begin(), top.end());
    }
    void place(const Taken& taken, unsigned left) {
        if (best == peak || (left && least(taken, left) >= best) || !seen.insert({taken, left}).second) return;
        if (!left) best = std::min(best, *std::max_element(taken.begin(), taken.end()));
        for (size_t i = 0; i < p.items.size(); i++) {
            if (!(left >> i & 1)) continue;
            const Item& it = p.items[i];
            Taken next = taken;
            int64_t at = 0;
            for (auto [b, e] : it.pieces)
                for (int64_t t = b; t < e; t++) at = std::max(at, taken[t]);
            at = (at + it.alignment - 1) / it.alignment * it.alignment + it.size;
            for (auto [b, e] : it.pieces)
                for (int64_t t = b; t < e; t++) next[t] = at;
            place(next, left & ~(1u << i));
        }
    }
};
// Up to twelve items with gaps and alignments: the optimum is found and proved.
static long larger(long trials, Random& r) {
    long bad = 0;
    for (long trial = 0; trial < trials; trial++) {
        Problem p;
        int n = 6 + r.below(7), most = 3 << r.below(4);
        int64_t sum = 0;
        for (int i = 0; i < n; i++) {
            Item it;
            it.size = 1 + r.below(most);
            it.alignment = int64_t{1} << (r.below(3) ? 0 : r.below(3));
            int64_t b = r.below(7), e = b + 1 + r.below(8 - b);
            if (e - b > 2 && r.below(4) == 0)
                it.pieces = {{b, b + 1}, {e - 1, e}};
            else
                it.pieces = {{b, e}};
            sum += it.size + it.alignment;
            p.items.push_back(it);
        }
        Minimum m = minimise(p, 0, {}, trial, 10000000, nullptr);
        Stacked all{p, sum, 0, {}};
        all.peak = all.least({}, (1u << n) - 1);
        all.place({}, (1u << n) - 1);
        bool fine = m.arena == all.best && m.bound == m.arena && ok(p, m.offsets, m.arena);
        if (!fine)
            printf("of %d items: arena %ld bound %ld, not %ld\n", n, (long)m.arena, (long)m.bound, (long)all.best);
        bad += !fine;
    }
    printf("up to twelve items: %ld trials, %ld wrong\n", trials, bad);
    return bad;
}
static std::vector<int> in_order(int n) {
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    return order;
}
// Companions at distances: greedy places them right, the lowest hole in some order no worse than side by side.
static bool shifted(Problem p, Random& r) {
    int64_t top = 0, most = 0;
    for (Item& it : p.items) {
        if (it.pinned >= 0) return true;
        it.alignment = 1;
        it.shift = r.below(7);
        top += it.size;
        most = std::max(most, it.shift);
    }
    bool fine = true;
    std::vector<int> order = in_order(p.items.size());
    std::reverse(order.begin(), order.end());
    for (Hole hole : {Hole::lowest, Hole::smallest}) {
        auto offsets = greedy_in_order(p, order, hole);
        int64_t arena = arena_of(p, offsets);
        fine &= ok(p, offsets, arena) && arena <= 2 * (top + most * (int64_t)p.items.size());
        for (size_t i = 0; i < p.items.size(); i++) fine &= offsets[i] >= p.items[i].shift;
    }
    return fine;
}
// Sizes near 2^62 and alignments near 2^32: no overflow, and what is found is right.
static long extremes(long trials, Random& r) {
    long bad = 0;
    for (long t = 0; t < trials; t++) {
        Problem p;
        int n = r.below(7);
        const int64_t big = kMaxBytes;
        p.partial_order = r.below(4) == 0;
        for (int i = 0; i < n; i++) {
            Item it;
            int64_t sizes[] = {big, big - 1, big / 2, big / 2 - 1, big / 3, 1, 0, (int64_t)r.below(big)};
            it.size = sizes[r.below(8)];
            int64_t aligns[] = {1, int64_t{1} << 32, (int64_t{1} << 32) - 1, 3, 64};
            it.alignment = aligns[r.below(5)];
            if (r.below(6) == 0) it.pinned = (int64_t)r.below(big) / it.alignment * it.alignment;
            int64_t a = (int64_t)r.below(8) * (int64_t{1} << 50) - (int64_t{1} << 52),
                    e = a + 1 + (int64_t)r.below(int64_t{1} << 52);
            it.pieces = {{a, e}};
            p.items.push_back(it);
        }
        if (p.partial_order)
            for (int i = 0; i < n; i++)
                for (int j = 0; j < i; j++)
                    if (r.below(2)) p.conflicts.push_back({i, j});
        if (n > 2 && r.below(3) == 0) p.companions.push_back({0, n - 1});
        Decision d = solve(p, big, t, 10000, nullptr);
        if (d.verdict == Verdict::feasible && !ok(p, d.offsets, big)) {
            bad++;
            puts("solve");
        }
        Minimum m = minimise(p, 0, {}, t, 20000, nullptr);
        if (!m.offsets.empty()) {
            bool w = !ok(p, m.offsets, m.arena), x = d.verdict == Verdict::infeasible;
            if (w || x) {
                bad++;
                printf("minimise %d %d arena %ld\n", w, x, (long)m.arena);
                for (auto& it : p.items)
                    printf("size %ld al %ld pin %ld\n", (long)it.size, (long)it.alignment, (long)it.pinned);
            }
        }
        try {
            auto o = greedy_in_order(p, in_order(n), Hole::lowest);
            if (!p.partial_order && d.verdict == Verdict::feasible && !ok(p, o, big)) {
                bad++;
                puts("greedy");
            }
        } catch (const std::overflow_error&) {
        }
    }
    return bad;
}
int main(int, char** argv) {
    long trials = atol(argv[1]);
    Random r(atol(argv[2]));
    long bad = 0, none = 0, solved = 0;
    for (long t = 0; t < trials; t++) {
        Problem p;
        int n = r.below(8);
        int kind = r.below(5);
        p.partial_order = kind == 4;
        for (int i = 0; i < n; i++) {
            Item it;
            it.size = r.below(6);
            if (r.below(8)) it.size++;
            if (kind == 1 || r.below(6) == 0) it.alignment = 1 + r.below(4);
            int64_t time = r.below(6);
            int pieces = (kind == 2 || kind == 3) ? 1 + r.below(3) : 1;
            for (int q = 0; q < pieces; q++) {
                int64_t e = time + 1 + r.below(4);
                it.pieces.push_back({time, e});
                time = e + 1 + r.below(2);
            }
            if (p.partial_order && r.below(2)) it.pieces.clear();
            if (kind >= 3 && r.below(5) == 0) it.pinned = it.alignment * r.below(6);
            p.items.push_back(it);
        }
        if (p.partial_order)
            for (int i = 0; i < n; i++)
                for (int j = 0; j < i; j++)
                    if (r.below(2)) p.conflicts.push_back({i, j});
        if (n > 2 && r.below(3) == 0) {
            int a = r.below(n), b = r.below(n);
            if (a != b) p.companions.push_back({a, b});
        }
        int64_t top = 24;  // arenas above that are not looked for
        int64_t want = brute(p, top);
        // contradictory pins or companions
        Decision at = solve(p, std::min(want, top), 1, INT64_MAX, nullptr);
        Decision below = want > 0 ? solve(p, want - 1, 2, INT64_MAX, nullptr) : Decision{Verdict::infeasible, {}, 0};
        bool fine = true;
        if (want <= top) {
            solved++;
            fine &= at.verdict == Verdict::feasible && ok(p, at.offsets, want);
            fine &= below.verdict == Verdict::infeasible;
            Minimum m = minimise(p, 0, {}, t, 1000000, nullptr);
            fine &= m.arena == want && m.bound == want && ok(p, m.offsets, want);
            for (Hole hole : {Hole::lowest, Hole::smallest}) {
                auto right = [&](const std::vector<int64_t>& off) {
                    return ok(p, off, arena_of(p, off)) && arena_of(p, off) >= want;
                };
                fine &= right(greedy_in_order(p, in_order(n), hole));
                if (!p.partial_order) fine &= right(greedy_by_tightness(p));
            }
            fine &= shifted(p, r);
            std::vector<int64_t> off = greedy_in_order(p, in_order(n), Hole::smallest);
            const int64_t before = arena_of(p, off);
            repack(p, want, t, 10000, nullptr, off);
            fine &= ok(p, off, before);
        } else {
            none++;
            fine &= at.verdict == Verdict::infeasible;
            Minimum m = minimise(p, 0, {}, t, 100000, nullptr);
            fine &= m.offsets.empty() || m.arena > top;
        }
        if (!fine) {
            if (bad++ < 3) {
                printf("trial %ld kind %d want %ld at %d below %d\n", t, kind, (long)want, (int)at.verdict,
                       (int)below.verdict);
                for (auto& it : p.items) {
                    printf("  size %ld align %ld pin %ld:", (long)it.size, (long)it.alignment, (long)it.pinned);
                    for (auto [a, b] : it.pieces) printf(" %ld-%ld", (long)a, (long)b);
                    puts("");
                }
                for (auto [a, b] : p.companions) printf("  companions %d %d\n", a, b);
                for (auto [a, b] : p.conflicts) printf("  conflict %d %d\n", a, b);
            }
        }
    }
    long wild = extremes(trials, r);
    printf("extremes: %ld wrong\n", wild);
    bad += wild + larger(trials, r);
    printf("%ld trials, %ld solved, %ld without packing, %ld wrong\n", trials, solved, none, bad);
    return bad != 0;
}
