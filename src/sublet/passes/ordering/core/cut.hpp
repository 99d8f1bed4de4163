// What no order can go below at one node: a minimum cut.
#pragma once

#include "problem.hpp"

namespace sublet::ordering {

// The fewest bytes alive while node j runs, over all sets of nodes that may have run before it.
int64_t least_during(const Problem& problem, int j);

}  // namespace sublet::ordering
