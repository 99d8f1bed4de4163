// An order made better where its peak is, and what no order goes below.
#pragma once

#include "descent.hpp"

namespace sublet::ordering {

struct Found {
    std::vector<int> order;
    int64_t peak;
    int64_t bound;     // no order has fewer bytes alive at its peak
    int bound_node;    // where: a node that needs so many in any order; -1: at the start, or by the search
    bool searched;     // the bound comes from a search that refuted everything below
    int64_t steps;     // sets visited
};

// Visits `effort` sets at most. What it is asked to stop at, it gives as far as it got.
Found improve(const Problem& problem, std::vector<int> order, int64_t effort, const std::function<bool()>& stop);

}  // namespace sublet::ordering
