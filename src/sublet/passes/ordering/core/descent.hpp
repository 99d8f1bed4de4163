// Whether some order of all nodes keeps within a number of bytes: a search over the sets of nodes that have run.
#pragma once

#include <functional>

#include "problem.hpp"

namespace sublet::ordering {

enum class Outcome { found, none, ended };

struct Answer {
    Outcome outcome;
    std::vector<int> order;  // where one was found
};

// Adds the sets visited to `steps`, and ends at `most` of them. The search goes forwards and backwards in turns.
Answer within(const Problem& problem, int64_t budget, int64_t& steps, int64_t most,
              const std::function<bool()>& stop);

constexpr int most_nodes = 1024;

}  // namespace sublet::ordering
