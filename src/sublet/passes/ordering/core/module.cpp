// Python bindings of the order search: a problem built from lists, the curve of live bytes, and the search.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>

#include "cut.hpp"
#include "improve.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace sublet::ordering;

namespace {

// By node, slots as (bytes of the result, atoms of each operand).
using Slots = std::vector<std::vector<std::pair<int64_t, Rows>>>;

Problem make_problem(std::vector<int64_t> size, std::vector<bool> kept, std::vector<int> maker, Rows before, Rows read,
                     Slots over, std::vector<int64_t> extra) {
    Problem p;
    const size_t n = before.size(), atoms = size.size();
    if (kept.size() != atoms || maker.size() != atoms || read.size() != n || over.size() != n || extra.size() != n)
        throw std::invalid_argument("lists of different lengths");
    p.size = std::move(size), p.kept.assign(kept.begin(), kept.end()), p.maker = std::move(maker);
    p.before = std::move(before), p.read = std::move(read), p.extra = std::move(extra);
    p.after.resize(n), p.born.resize(n), p.readers.resize(atoms), p.over.resize(n);
    for (size_t j = 0; j < n; j++) {
        for (int k : p.before[j]) p.after.at(k).push_back(static_cast<int>(j));
        for (int a : p.read[j]) p.readers.at(a).push_back(static_cast<int>(j));
        for (auto& [nbytes, operands] : over[j]) p.over[j].push_back({nbytes, std::move(operands)});
    }
    for (size_t a = 0; a < atoms; a++)
        if (p.maker[a] >= 0) p.born.at(p.maker[a]).push_back(static_cast<int>(a));
    return p;
}

std::tuple<std::vector<int>, int64_t, int64_t, int, bool, int64_t> improved(
    const Problem& problem, std::vector<int> order, int64_t effort, nb::callable should_stop) {
    if (order.size() != static_cast<size_t>(problem.nodes())) throw std::invalid_argument("not all nodes");
    Found found;
    {
        nb::gil_scoped_release release;
        const auto stop = [&] {
            nb::gil_scoped_acquire gil;
            return nb::cast<bool>(should_stop());
        };
        found = improve(problem, std::move(order), effort, stop);
    }
    return {found.order, found.peak, found.bound, found.bound_node, found.searched, found.steps};
}

}  // namespace

NB_MODULE(_ordering, module) {
    nb::set_leak_warnings(false);  // an interrupted search may be kept until the interpreter ends
    nb::class_<Problem>(module, "Problem")
        .def("curve", &curve, "order"_a)
        .def("at_start", &at_start)
        .def("least_during", &least_during, "node"_a)
        .def("improved", &improved, "order"_a, "effort"_a, "should_stop"_a);
    module.def("problem", &make_problem, "size"_a, "kept"_a, "maker"_a, "before"_a, "read"_a, "over"_a, "extra"_a);
}
