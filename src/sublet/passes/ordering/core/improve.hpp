// Improvement of an order around the peak of live bytes, and a lower bound for all orders.
#pragma once

#include "descent.hpp"

namespace sublet::ordering {

struct Found {
    std::vector<int> order;
    int64_t peak;
    int64_t bound;     // no order has fewer live bytes at the peak
    int bound_node;    // the node requiring `bound` in any order; -1: the start, or proved by the search
    bool searched;     // true if a search refuted every lower peak
    int64_t steps;     // number of visited sets
};

// Visits at most `effort` sets. Polls `stop`; when true, returns the best result so far.
Found improve(const Problem& problem, std::vector<int> order, int64_t effort, const std::function<bool()>& stop);

}  // namespace sublet::ordering
