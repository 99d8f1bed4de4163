// Python bindings of the rematerialization search: a level built from lists, and the search for clones.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>

#include "search.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace sublet::recompute;

namespace {

using Pairs = std::vector<std::pair<int, int>>;

Clones clones_of(const Level& level, const Pairs& pairs) {
    Clones clones(level.nodes());
    for (const auto& [node, slot] : pairs) {
        if (node < 0 || slot < 0 || node >= level.nodes() || slot >= level.nodes() || node >= slot)
            throw std::invalid_argument("no such pair");
        clones[slot].push_back(node);
    }
    for (auto& at : clones) {
        std::sort(at.begin(), at.end());
        at.erase(std::unique(at.begin(), at.end()), at.end());
    }
    return clones;
}

Pairs pairs_of(const Clones& clones) {
    Pairs pairs;
    for (size_t slot = 0; slot < clones.size(); slot++)
        for (int node : clones[slot]) pairs.emplace_back(node, static_cast<int>(slot));
    return pairs;
}

Level make_level(std::vector<int64_t> nbytes, std::vector<bool> kept, Rows read, Rows cloned, Rows born, Rows renewed,
                 Rows over, Rows at_home, std::vector<int64_t> extra, std::vector<int64_t> wasted,
                 std::vector<int64_t> cost, std::vector<int> latest,
                 std::vector<int> away, int64_t steady) {
    Level level;
    level.maker.assign(nbytes.size(), -1);
    for (size_t j = 0; j < born.size(); j++)
        for (int b : born[j]) level.maker.at(b) = static_cast<int>(j);
    level.nbytes = std::move(nbytes);
    level.kept.assign(kept.begin(), kept.end());
    level.read = std::move(read), level.cloned = std::move(cloned);
    level.born = std::move(born), level.renewed = std::move(renewed);
    level.over = std::move(over), level.at_home = std::move(at_home);
    level.extra = std::move(extra), level.wasted = std::move(wasted), level.cost = std::move(cost);
    level.latest = std::move(latest), level.away = std::move(away);
    level.steady = steady;
    return level;
}

std::pair<int64_t, int64_t> figures(const Level& level, const Pairs& pairs) {
    Timeline timeline;
    timeline.work_out(level, clones_of(level, pairs));
    return {timeline.peak, timeline.cost};
}

// Runs `reduce` from the given clones, then `spare` and `improve`. Returns (pairs, true if within the budget).
std::pair<Pairs, bool> within(const Level& level, int64_t budget, const Pairs& start, uint64_t seed, int64_t most,
                              nb::callable should_stop) {
    Clones clones = clones_of(level, start);
    int64_t steps = 0;
    bool met;
    {
        nb::gil_scoped_release release;
        const auto stop = [&] {
            nb::gil_scoped_acquire gil;
            return nb::cast<bool>(should_stop());
        };
        met = reduce(level, budget, clones, steps, INT64_MAX);
        if (met) {
            spare(level, budget, clones, steps);
            improve(level, budget, seed, clones, steps, steps + most, stop);
        }
    }
    return {pairs_of(clones), met};
}

Pairs segments(const Level& level, int count) { return pairs_of(in_segments(level, count)); }

}  // namespace

NB_MODULE(_search, module) {
    nb::set_leak_warnings(false);  // an interrupted search may be kept until the interpreter ends
    nb::class_<Level>(module, "Level")
        .def("figures", &figures, "pairs"_a)
        .def("within", &within, "budget"_a, "start"_a, "seed"_a, "most"_a, "should_stop"_a)
        .def("segments", &segments, "count"_a);
    module.def("level", &make_level, "nbytes"_a, "kept"_a, "read"_a, "cloned"_a, "born"_a, "renewed"_a, "over"_a,
               "at_home"_a, "extra"_a, "wasted"_a, "cost"_a, "latest"_a, "away"_a, "steady"_a);
}
