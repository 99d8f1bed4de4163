#include "cut.hpp"

#include <algorithm>

#include "../../../packing/core/flow.hpp"

namespace sublet::ordering {

namespace {

constexpr int most_choices = 16;  // maximum combinations of overwritten operands with a separate cut each

// Relation of a node to node j: free to run before or after, forced to run before, or forced to run after.
enum Side : char { open, before, after };

std::vector<char> sides_of(const Problem& p, int j) {
    std::vector<char> side(p.nodes(), open);
    for (const auto& [rows, mark] : {std::pair{&p.before, before}, std::pair{&p.after, after}}) {
        std::vector<int> todo{j};
        while (!todo.empty()) {
            const int k = todo.back();
            todo.pop_back();
            for (int other : (*rows)[k])
                if (side[other] == open) side[other] = mark, todo.push_back(other);
        }
    }
    side[j] = after;
    return side;
}

// Minimum live bytes while node j runs, without the bytes defined by j. The atoms in `over` are overwritten by j: the
// last use by j does not keep them live.
int64_t cut(const Problem& p, const std::vector<char>& side, int j, const std::vector<char>& over) {
    Network network;
    const int source = network.add_node(), sink = network.add_node();
    std::vector<int> id(p.nodes());
    for (int k = 0; k < p.nodes(); k++)
        id[k] = side[k] == before ? source : side[k] == after ? sink : network.add_node();
    for (int k = 0; k < p.nodes(); k++)
        if (side[k] == open)
            for (int first : p.before[k])
                if (side[first] == open) network.add_edge(id[k], id[first], unlimited);
    int64_t steady = p.base;
    for (int a = 0; a < p.atoms(); a++) {
        const int maker = p.maker[a] < 0 ? source : id[p.maker[a]];
        if (maker == sink || p.size[a] == 0) continue;
        bool stays = p.kept[a];
        std::vector<int> readers;
        for (int r : p.readers[a]) {
            if (r == j && over[a]) continue;
            stays |= id[r] == sink;
            if (side[r] == open) readers.push_back(id[r]);
        }
        if (stays && maker == source) {
            steady += p.size[a];
        } else if (stays) {
            network.add_edge(maker, sink, p.size[a]);
        } else if (readers.size() == 1) {
            network.add_edge(maker, readers[0], p.size[a]);
        } else if (!readers.empty()) {
            const int some = network.add_node();
            network.add_edge(maker, some, p.size[a]);
            for (int r : readers) network.add_edge(some, r, unlimited);
        }
    }
    return steady + network.flow(source, sink);
}

}  // namespace

int64_t least_during(const Problem& p, int j) {
    const std::vector<char> side = sides_of(p, j);
    size_t choices = 1;
    for (const Slot& slot : p.over[j]) choices *= std::max<size_t>(1, slot.operands.size());
    int64_t made = p.extra[j];
    for (int a : p.born[j]) made += p.size[a];
    int64_t least = unlimited;
    const bool all = choices > most_choices;  // then every operand counts as overwritten: still a lower bound
    for (size_t choice = 0; choice < (all ? 1 : choices); choice++) {
        std::vector<char> over(p.atoms(), 0);
        size_t rest = choice;
        for (const Slot& slot : p.over[j]) {
            const size_t n = std::max<size_t>(1, slot.operands.size());
            for (size_t i = 0; i < slot.operands.size(); i++)
                if (all || i == rest % n)
                    for (int a : slot.operands[i]) over[a] = !p.kept[a];
            rest /= n;
        }
        least = std::min(least, made + cut(p, side, j, over));
    }
    return least;
}

}  // namespace sublet::ordering
