// Maximum flow and minimum cut of a network.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace sublet {

constexpr int64_t unlimited = std::numeric_limits<int64_t>::max() / 4;

// Maximum flow by blocking flows (Dinitz, 1970).
class Network {
public:
    explicit Network(int nodes = 0) : edges(nodes) {}

    int add_node() {
        edges.emplace_back();
        return static_cast<int>(edges.size()) - 1;
    }

    void add_edge(int from, int to, int64_t capacity) {
        edges[from].push_back({to, static_cast<int>(edges[to].size()), capacity});
        edges[to].push_back({from, static_cast<int>(edges[from].size()) - 1, 0});
    }

    int64_t flow(int source, int sink) {
        int64_t total = 0;
        while (levels(source, sink)) {
            next.assign(edges.size(), 0);
            while (const int64_t more = push(source, sink, unlimited)) total += more;
        }
        return total;
    }

    // True if the source reaches the node in the residual network of a maximum flow: the near side of a minimum cut.
    bool is_reached(int node) const { return level[node] >= 0; }

private:
    struct Edge {
        int to, back;
        int64_t left;
    };
    std::vector<std::vector<Edge>> edges;
    std::vector<int> level;
    std::vector<size_t> next;

    bool levels(int source, int sink) {
        level.assign(edges.size(), -1);
        std::vector<int> queue{source};
        level[source] = 0;
        for (size_t i = 0; i < queue.size() && level[sink] < 0; i++)
            for (const Edge& edge : edges[queue[i]])
                if (edge.left > 0 && level[edge.to] < 0) {
                    level[edge.to] = level[queue[i]] + 1;
                    queue.push_back(edge.to);
                }
        return level[sink] >= 0;
    }

    // Augments along a single path; iterative, because networks are too deep for recursion.
    int64_t push(int source, int sink, int64_t most) {
        std::vector<std::pair<int, size_t>> path;
        int at = source;
        while (at != sink) {
            size_t& i = next[at];
            while (i < edges[at].size() && !(edges[at][i].left > 0 && level[edges[at][i].to] == level[at] + 1)) i++;
            if (i < edges[at].size()) {
                path.emplace_back(at, i);
                at = edges[at][i].to;
            } else {
                if (path.empty()) return 0;
                at = path.back().first;
                path.pop_back();
                next[at]++;
            }
        }
        for (const auto& [from, i] : path) most = std::min(most, edges[from][i].left);
        for (const auto& [from, i] : path) {
            Edge& edge = edges[from][i];
            edge.left -= most;
            edges[edge.to][edge.back].left += most;
        }
        return most;
    }
};

}  // namespace sublet
