// Sections of a partial order: cliques of its conflict graph.
//
// Time gives every conflict of an interval problem a section for nothing; here they are grown: from the heaviest
// conflicts first, each clique taking the heaviest block that conflicts with all it holds. What is left
// uncovered when the budget is spent is handled pair by pair (State::place).
#include <algorithm>
#include <numeric>
#include <tuple>

#include "sections.hpp"

namespace sublet {
namespace {

using Bits = std::vector<uint64_t>;

struct Graph {
    int n;
    size_t words;
    std::vector<Bits> row;
    explicit Graph(int count) : n(count), words((count + 63) / 64), row(count, Bits(words, 0)) {}
    void join(int a, int b) {
        row[a][b >> 6] |= uint64_t{1} << (b & 63);
        row[b][a >> 6] |= uint64_t{1} << (a & 63);
    }
    void part(int a, int b) {
        row[a][b >> 6] &= ~(uint64_t{1} << (b & 63));
        row[b][a >> 6] &= ~(uint64_t{1} << (a & 63));
    }
    bool has(int a, int b) const { return row[a][b >> 6] >> (b & 63) & 1; }
};

int first_common(const Bits& a, const Bits& b) {
    for (size_t w = 0; w < a.size(); w++)
        if (a[w] & b[w]) return static_cast<int>(w * 64 + __builtin_ctzll(a[w] & b[w]));
    return -1;
}

bool narrow(Bits& a, const Bits& b) {
    uint64_t any = 0;
    for (size_t w = 0; w < a.size(); w++) any |= a[w] &= b[w];
    return any != 0;
}

}  // namespace

// Nodes are ranked heaviest first, so that "the first bit" is the heaviest candidate.
std::vector<std::vector<int>> cover_by_cliques(const std::vector<std::pair<int, int>>& conflicts,
                                               const std::vector<int64_t>& weights,
                                               const std::vector<std::vector<int>>& known, size_t most_entries,
                                               bool& covered) {
    int n = static_cast<int>(weights.size());
    std::vector<int> by_weight(n), rank(n);
    std::iota(by_weight.begin(), by_weight.end(), 0);
    std::stable_sort(by_weight.begin(), by_weight.end(), [&](int a, int b) { return weights[a] > weights[b]; });
    for (int k = 0; k < n; k++) rank[by_weight[k]] = k;
    Graph graph(n), left(n);
    for (auto [a, b] : conflicts) {
        graph.join(rank[a], rank[b]);
        left.join(rank[a], rank[b]);
    }
    std::vector<std::vector<int>> cliques;
    std::vector<char> seen(n, 0);
    size_t entries = 0;
    // Grows along conflicts that no clique holds yet while there are any, heaviest first, until it is maximal.
    auto grow = [&](std::vector<int> clique, Bits candidates) {
        for (int next = 0; next >= 0;) {
            next = first_common(candidates, left.row[clique.back()]);
            if (next < 0) next = first_common(candidates, left.row[clique.front()]);
            if (next < 0) next = first_common(candidates, candidates);
            if (next < 0) break;
            clique.push_back(next);
            narrow(candidates, graph.row[next]);
        }
        for (int a : clique) {
            seen[a] = 1;
            for (int b : clique)
                if (a < b && left.has(a, b)) left.part(a, b);
        }
        entries += clique.size();
        for (int& member : clique) member = by_weight[member];
        cliques.push_back(std::move(clique));
    };
    for (const std::vector<int>& start : known) {
        std::vector<int> clique;
        Bits candidates(graph.words, ~uint64_t{0});
        for (int node : start) {
            if (!(candidates[rank[node] >> 6] >> (rank[node] & 63) & 1)) continue;
            clique.push_back(rank[node]);
            narrow(candidates, graph.row[rank[node]]);
        }
        bool fresh = clique.size() == 1 && !seen[clique[0]];
        for (size_t k = 1; k < clique.size() && !fresh; k++)
            fresh = left.has(clique[0], clique[k]) || left.has(clique[k - 1], clique[k]);
        if (fresh && entries <= most_entries) grow(clique, candidates);
    }
    for (int seed = 0; seed < n; seed++)
        while (!seen[seed] || (entries <= most_entries && first_common(left.row[seed], left.row[seed]) >= 0))
            grow({seed}, graph.row[seed]);
    covered = true;
    for (int node = 0; node < n; node++) covered &= first_common(left.row[node], left.row[node]) < 0;
    return cliques;
}

}  // namespace sublet
