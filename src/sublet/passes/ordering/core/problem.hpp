// A level of a program as numbers, and the live bytes while the nodes run in some order.
#pragma once

#include <cstdint>
#include <vector>

namespace sublet::ordering {

using Rows = std::vector<std::vector<int>>;

// A result able to overwrite one of several operands at the last use. Each operand is a list of atoms.
struct Slot {
    int64_t nbytes;
    Rows operands;
};

// An atom is a set of bytes with a common live range, from the maker (-1: the start) to the last reader.
struct Problem {
    std::vector<int64_t> size;
    std::vector<char> kept;
    std::vector<int> maker;
    Rows readers;
    Rows before, after, born, read;  // by node
    std::vector<std::vector<Slot>> over;
    std::vector<int64_t> extra;
    int64_t base = 0;  // bytes live throughout

    int nodes() const { return static_cast<int>(before.size()); }
    int atoms() const { return static_cast<int>(size.size()); }
};

// A set of run nodes, closed under predecessors, and the live bytes after the set.
class State {
public:
    explicit State(const Problem& problem);

    int64_t live;
    std::vector<char> done;
    std::vector<int> waits, held;  // by node: predecessors not yet run, successors already run

    // The growth of live bytes by node j, and the live bytes while j runs. Valid whether or not j has run.
    int64_t net(int j) const;
    int64_t during(int j) const;
    void run(int j);
    void take_back(int j);

private:
    const Problem& problem;
    std::vector<int> left;  // by atom: readers not yet run
};

// Returns the live bytes while each node runs, in this order.
std::vector<int64_t> curve(const Problem& problem, const std::vector<int>& order);

// Returns the live bytes at the start.
int64_t at_start(const Problem& problem);

// Returns the nodes order[begin..end) as a separate problem, between the earlier and the later nodes of the order.
Problem window(const Problem& problem, const std::vector<int>& order, int begin, int end);

}  // namespace sublet::ordering
