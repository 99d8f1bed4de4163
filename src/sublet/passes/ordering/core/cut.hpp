// Lower bound on the live bytes at a node over all orders, by a minimum cut.
#pragma once

#include "problem.hpp"

namespace sublet::ordering {

// Returns the minimum live bytes while node j runs, over all legal sets of nodes run before j.
int64_t least_during(const Problem& problem, int j);

}  // namespace sublet::ordering
