// The root level of a program as numbers, and the live bytes at each moment of a rematerialized program.
#pragma once
#include <cstdint>
#include <vector>

namespace sublet::recompute {

using Rows = std::vector<std::vector<int>>;

// The fields are described in `passes/recompute/remat_problem.py`. `over` (there: inplace) and `at_home` (there:
// update_in_place) hold pairs, flattened.
struct Level {
    std::vector<int64_t> nbytes;               // size of each block
    std::vector<char> kept;                    // by block: live after the last node
    Rows read, cloned, born, renewed;          // blocks by node
    Rows over, at_home;                        // (made, read) by node
    std::vector<int64_t> extra, wasted, cost;  // bytes, bytes, nanoseconds by node
    std::vector<int> latest, maker;            // by node: last reader of a clone; by block: defining node, -1 for none
    std::vector<int> away;                     // by block: the node offloading the block, -1 for none
    int64_t steady = 0;                        // bytes live before the first node and throughout

    // True if the node offloads its operand to slow memory. An offload runs only if the operand is reloaded.
    bool offloads(int j) const { return !renewed[j].empty() && away[renewed[j][0]] == j; }

    int nodes() const { return static_cast<int>(read.size()); }
};

// By position of the reader, the nodes recomputed right before the reader, in order.
using Clones = Rows;

// A content of a block, live from the definition at moment `made` (-1: before the first node) to the last read at
// moment `last` (-1: none). `before` is the previous content of the block (-1: none).
struct Content {
    int block, made, last, before;
    bool kept;
};

// The nodes and clones running at each moment, and the live bytes. Dead clones and dead originals are idle.
struct Timeline {
    std::vector<int> node, slot;
    std::vector<char> idle;
    std::vector<Content> contents;
    std::vector<int> newest;           // by block: the last content, -1 for none
    std::vector<int> reads, reads_at;  // contents read at moment m: reads[reads_at[m] .. reads_at[m + 1])
    std::vector<int> born, born_at;
    std::vector<int64_t> live;
    int64_t peak = 0, cost = 0;

    void work_out(const Level& level, const Clones& clones);
    // Returns the bytes above the budget: the maximum of each slot, summed over slots.
    int64_t excess(int64_t budget) const;
    // Returns the content of a block seen by a reader at this moment; -1 for none.
    int seen(int block, int moment) const;
    // Returns the moment of node j (j == r) or of the clone of j before reader r.
    int moment_of(int j, int r) const;

   private:
    std::vector<char> several, wanted;
    std::vector<int> ending, taking;
    void lay_out(const Level& level, const Clones& clones);
    void find_idle(const Level& level);
    void count(const Level& level);
};

}  // namespace sublet::recompute
