// What Python sees of the core: a problem built from arrays, and the searches on it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "flow.hpp"
#include "greedy.hpp"
#include "repack.hpp"
#include "search.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace sublet;

namespace {

template <typename Number>
using Row = nb::ndarray<const Number, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Relation = nb::ndarray<const bool, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using PairRows = nb::ndarray<const int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using Offsets = nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>;

Offsets as_array(std::vector<int64_t> numbers) {
    auto* kept = new std::vector<int64_t>(std::move(numbers));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<int64_t>*>(p); });
    return Offsets(kept->data(), {kept->size()}, owner);
}

std::vector<std::pair<int, int>> pairs_of(const PairRows& rows, size_t items) {
    std::vector<std::pair<int, int>> pairs;
    pairs.reserve(rows.shape(0));
    for (size_t i = 0; i < rows.shape(0); i++) {
        const int first = rows(i, 0), second = rows(i, 1);
        if (first < 0 || second < 0 || static_cast<size_t>(first) >= items || static_cast<size_t>(second) >= items)
            throw std::invalid_argument("a pair names no item");
        pairs.emplace_back(first, second);
    }
    return pairs;
}

// Item i lives in the pieces [first_piece[i], first_piece[i + 1]).
Problem make_problem(Row<int64_t> sizes, Row<int64_t> alignments, Row<int64_t> pinned, Row<int64_t> first_piece,
                     Row<int64_t> begins, Row<int64_t> ends, PairRows companions) {
    const size_t count = sizes.shape(0);
    const bool fits = alignments.shape(0) == count && pinned.shape(0) == count && first_piece.shape(0) == count + 1 &&
                      begins.shape(0) == ends.shape(0) && first_piece(count) == static_cast<int64_t>(begins.shape(0));
    if (!fits) throw std::invalid_argument("arrays of unequal lengths");
    Problem problem;
    problem.items.resize(count);
    for (size_t i = 0; i < count; i++) {
        Item& item = problem.items[i];
        item.size = sizes(i);
        item.alignment = alignments(i);
        item.pinned = pinned(i);
        if (first_piece(i) < 0 || first_piece(i) > first_piece(i + 1))
            throw std::invalid_argument("pieces out of order");
        for (int64_t piece = first_piece(i); piece < first_piece(i + 1); piece++)
            item.pieces.emplace_back(begins(piece), ends(piece));
    }
    problem.companions = pairs_of(companions, count);
    return problem;
}

// Python is asked now and then. Ctrl-C there, at whatever instruction, stops the search, which then returns what it
// has; any other exception comes out of the call.
struct Asking {
    const nb::callable& should_stop;
    bool interrupted = false;

    ShouldStop function() {
        return [this] {
            nb::gil_scoped_acquire gil;
            try {
                return interrupted || nb::cast<bool>(should_stop());
            } catch (nb::python_error& error) {
                if (!error.matches(PyExc_KeyboardInterrupt)) throw;
                return interrupted = true;
            }
        };
    }
};

const char* name_of(Verdict verdict) {
    if (verdict == Verdict::feasible) return "feasible";
    return verdict == Verdict::infeasible ? "infeasible" : "unknown";
}

std::tuple<const char*, Offsets, int64_t, bool> decide(const Problem& problem, int64_t capacity, uint64_t seed,
                                                       int64_t max_steps, nb::callable should_stop) {
    Decision decision;
    Asking asking{should_stop};
    {
        nb::gil_scoped_release release;
        decision = solve(problem, capacity, seed, max_steps, asking.function());
    }
    return {name_of(decision.verdict), as_array(std::move(decision.offsets)), decision.steps, asking.interrupted};
}

std::tuple<Offsets, int64_t, int64_t, bool> smallest(const Problem& problem, int64_t lower_bound,
                                                     Row<int64_t> incumbent, uint64_t seed, int64_t max_steps,
                                                     nb::callable should_stop) {
    const std::vector<int64_t> known(incumbent.data(), incumbent.data() + incumbent.shape(0));
    Minimum minimum;
    Asking asking{should_stop};
    {
        nb::gil_scoped_release release;
        minimum = minimise(problem, lower_bound, known, seed, max_steps, asking.function());
    }
    return {as_array(std::move(minimum.offsets)), minimum.bound, minimum.steps, asking.interrupted};
}

std::tuple<Offsets, int64_t, bool> repacked(const Problem& problem, int64_t lower_bound, Row<int64_t> incumbent,
                                            uint64_t seed, int64_t max_steps, nb::callable should_stop) {
    std::vector<int64_t> offsets(incumbent.data(), incumbent.data() + incumbent.shape(0));
    int64_t steps = 0;
    Asking asking{should_stop};
    {
        nb::gil_scoped_release release;
        steps = repack(problem, lower_bound, seed, max_steps, asking.function(), offsets);
    }
    return {as_array(std::move(offsets)), steps, asking.interrupted};
}

Offsets in_order(const Problem& problem, Row<int32_t> order, Hole hole) {
    const std::vector<int> items(order.data(), order.data() + order.shape(0));
    for (int item : items)
        if (item < 0 || static_cast<size_t>(item) >= problem.items.size())
            throw std::invalid_argument("the order names no item");
    nb::gil_scoped_release release;
    std::vector<int64_t> offsets = greedy_in_order(problem, items, hole);
    nb::gil_scoped_acquire acquire;
    return as_array(std::move(offsets));
}

// Weighted Dilworth: S -> i of capacity w_i, i -> j' unlimited where i is related to j, j' -> T of capacity w_j. The set
// is every i with i reached from S in the residual network, and i' not.
std::vector<int> heaviest_antichain(Relation related, Row<int64_t> weights) {
    const int count = static_cast<int>(weights.shape(0));
    if (related.shape(0) != weights.shape(0) || related.shape(1) != weights.shape(0))
        throw std::invalid_argument("arrays of unequal lengths");
    nb::gil_scoped_release release;
    Network network(2 * count + 2);
    const int source = 2 * count, sink = source + 1;
    for (int i = 0; i < count; i++) {
        network.add_edge(source, i, weights(i));
        network.add_edge(count + i, sink, weights(i));
        for (int j = 0; j < count; j++)
            if (related(i, j)) network.add_edge(i, count + j, unlimited);
    }
    network.flow(source, sink);
    std::vector<int> chosen;
    for (int i = 0; i < count; i++)
        if (weights(i) > 0 && network.is_reached(i) && !network.is_reached(count + i)) chosen.push_back(i);
    return chosen;
}

Offsets by_tightness(const Problem& problem) { return as_array(greedy_by_tightness(problem)); }

Offsets swept(const Problem& problem) { return as_array(sweep(problem)); }

void set_conflicts(Problem& problem, PairRows conflicts) {
    problem.partial_order = true;
    problem.conflicts = pairs_of(conflicts, problem.items.size());
}

void set_shifts(Problem& problem, Row<int64_t> shifts) {
    if (shifts.shape(0) != problem.items.size()) throw std::invalid_argument("arrays of unequal lengths");
    for (size_t i = 0; i < problem.items.size(); i++) problem.items[i].shift = shifts(i);
}

}  // namespace

NB_MODULE(_core, m) {
    nb::set_leak_warnings(false);  // the latest problem is kept until the interpreter ends
    m.doc() = "The inner loops of packing.";
    nb::enum_<Hole>(m, "Hole").value("lowest", Hole::lowest).value("smallest", Hole::smallest);
    nb::class_<Problem>(m, "Problem")
        .def("set_conflicts", &set_conflicts, "conflicts"_a)
        .def("set_shifts", &set_shifts, "shifts"_a)
        .def("greedy_in_order", &in_order, "order"_a, "hole"_a)
        .def("greedy_by_tightness", &by_tightness)
        .def("sweep", &swept)
        .def("count_overlaps", &count_overlaps)
        .def("solve", &decide, "capacity"_a, "seed"_a, "max_steps"_a, "should_stop"_a)
        .def("repack", &repacked, "lower_bound"_a, "incumbent"_a, "seed"_a, "max_steps"_a, "should_stop"_a)
        .def("minimise", &smallest, "lower_bound"_a, "incumbent"_a, "seed"_a, "max_steps"_a, "should_stop"_a);
    m.def("problem", &make_problem, "sizes"_a, "alignments"_a, "pinned"_a, "first_piece"_a, "begins"_a, "ends"_a,
          "companions"_a);
    m.def("heaviest_antichain", &heaviest_antichain, "related"_a, "weights"_a);
}
