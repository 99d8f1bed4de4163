// One level of a program as numbers, and the bytes alive while its nodes run in some order.
#pragma once

#include <cstdint>
#include <vector>

namespace sublet::ordering {

using Rows = std::vector<std::vector<int>>;

// A result that may be written over what is read for the last time: over one of several operands, each a list of atoms.
struct Slot {
    int64_t nbytes;
    Rows operands;
};

// An atom is bytes that live and die together. It is alive from its maker (-1: the start) to the last of its readers.
struct Problem {
    std::vector<int64_t> size;
    std::vector<char> kept;
    std::vector<int> maker;
    Rows readers;
    Rows before, after, born, read;  // by node
    std::vector<std::vector<Slot>> over;
    std::vector<int64_t> extra;
    int64_t base = 0;  // alive throughout

    int nodes() const { return static_cast<int>(before.size()); }
    int atoms() const { return static_cast<int>(size.size()); }
};

// A set of nodes that have run, closed under what they wait for, with the bytes alive then.
class State {
public:
    explicit State(const Problem& problem);

    int64_t live;
    std::vector<char> done;
    std::vector<int> waits, held;  // by node: those before it that have not run, those after it that have

    // How the bytes alive change by node j, and how many are alive while it runs, from the nodes other than j.
    int64_t net(int j) const;
    int64_t during(int j) const;
    void run(int j);
    void take_back(int j);

private:
    const Problem& problem;
    std::vector<int> left;  // by atom: readers that have not run
};

// The bytes alive while each node runs, in this order.
std::vector<int64_t> curve(const Problem& problem, const std::vector<int>& order);

// The bytes alive at the start.
int64_t at_start(const Problem& problem);

// The nodes order[begin..end) as a problem of their own, after those before them and before those behind.
Problem window(const Problem& problem, const std::vector<int>& order, int begin, int end);

}  // namespace sublet::ordering
