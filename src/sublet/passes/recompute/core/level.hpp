// The root level of a program as numbers, and the bytes alive at each moment when some nodes are computed again.
#pragma once
#include <cstdint>
#include <vector>

namespace sublet::recompute {

using Rows = std::vector<std::vector<int>>;

// As `passes/recompute/level.py` describes it. `over` and `at_home` have pairs, one after another.
struct Level {
    std::vector<int64_t> nbytes;               // of each block
    std::vector<char> kept;                    // whether it is needed after all nodes
    Rows read, cloned, born, renewed;          // blocks by node
    Rows over, at_home;                        // (made, read) by node
    std::vector<int64_t> extra, wasted, cost;  // bytes, bytes, nanoseconds by node
    std::vector<int> latest, maker;            // by node: the last place of a clone; by block: the node, -1 for none
    std::vector<int> away;                     // by block: the node that brings it to the slow memory, -1 for none
    int64_t steady = 0;                        // bytes that are there before the first node

    // Whether a node brings what it reads to the slow memory: it runs only where that is brought back.
    bool offloads(int j) const { return !renewed[j].empty() && away[renewed[j][0]] == j; }

    int nodes() const { return static_cast<int>(read.size()); }
};

// By the position of the reader what is computed again right before it, in order.
using Clones = Rows;

// One content of a block: from the moment it is made (-1: before all) to the last it is read at (-1: none), and the
// content that was in the block before (-1: none).
struct Content {
    int block, made, last, before;
    bool kept;
};

// What runs at each moment, and what is alive then. What nobody reads does not run.
struct Timeline {
    std::vector<int> node, slot;
    std::vector<char> idle;
    std::vector<Content> contents;
    std::vector<int> newest;           // by block its last content, -1 for none
    std::vector<int> reads, reads_at;  // contents read, of moment m in [reads_at[m], reads_at[m + 1])
    std::vector<int> born, born_at;
    std::vector<int64_t> live;
    int64_t peak = 0, cost = 0;

    void work_out(const Level& level, const Clones& clones);
    // How far the bytes are above the budget: the worst of each slot, summed.
    int64_t excess(int64_t budget) const;
    // The content of a block that a reader at this moment sees; -1 for none.
    int seen(int block, int moment) const;
    // When a node, or the clone of one, runs before a reader that it stands at.
    int moment_of(int j, int r) const;

   private:
    std::vector<char> several, wanted;
    std::vector<int> ending, taking;
    void lay_out(const Level& level, const Clones& clones);
    void find_idle(const Level& level);
    void count(const Level& level);
};

}  // namespace sublet::recompute
