// Decides whether some order of all nodes stays within a budget of live bytes, by a search over sets of run nodes.
#pragma once

#include <functional>

#include "problem.hpp"

namespace sublet::ordering {

// An order was found; no order exists; or the search ended at the limit.
enum class Outcome { found, none, ended };

struct Answer {
    Outcome outcome;
    std::vector<int> order;  // for Outcome::found
};

// Searches forwards and backwards in turns, with growing limits. Adds the number of visited sets to `steps`; ends when
// `steps` reaches `most`.
Answer within(const Problem& problem, int64_t budget, int64_t& steps, int64_t most,
              const std::function<bool()>& stop);

constexpr int most_nodes = 1024;  // larger problems are not searched

}  // namespace sublet::ordering
