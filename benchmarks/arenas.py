"""Arenas of real networks: without reuse, by peers, by Sublet, and the bound of the given order.

    python -m benchmarks.arenas

The networks are those of the onnx package, and published architectures with random weights (benchmarks/models). Without
reuse every tensor has bytes of its own. Best fit with reuse places whole tensors in order of first use, as MLIR's
StaticMemoryPlanner documents the method. onnxsim plans the model after its own simplification; rows of onnxsim stand
where onnxsim is installed and gives every tensor a place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import onnx

from benchmarks.models.architectures import ARCHITECTURES
from benchmarks.models.wheels import light_models
from benchmarks.packing_generated import STATIC_PLANNER, best_fit_with_reuse
from benchmarks.results import BOUND, Row, exact_row
from sublet.analysis.options import Options
from sublet.base.optional_imports import is_installed
from sublet.integrations.onnx.reader.model import from_proto
from sublet.ir.graph import Graph
from sublet.packing import Buffer, Problem, check_packing
from sublet.planning.pipeline import plan_memory

NO_REUSE = "no reuse"
NETWORKS: Mapping[str, Callable[[], Any]] = {
    **{model.name.removeprefix("light_"): partial(onnx.load, model.path) for model in light_models()},
    **{name: ARCHITECTURES[name] for name in ("mobilenet_v2", "unet", "bert", "gpt2")},
}


def tensors_as_problem(graph: Graph, alignment: int) -> Problem:
    """Return a buffer for every tensor of a graph without loops, live from its first node to its last."""
    ends = dict.fromkeys(graph.inputs, (-1, -1))
    for i, node in enumerate(graph.nodes):
        ends |= dict.fromkeys(node.defs, (i, i))
        ends |= {value: (ends[value][0], i) for value in node.uses if value in ends}
    ends |= {value: (ends[value][0], len(graph.nodes)) for value in graph.outputs if value in ends}
    return Problem(
        tuple(
            Buffer(str(i), value.nbytes, begin + 1, end + 2, alignment)
            for i, (value, (begin, end)) in enumerate(ends.items())
        )
    )


def result_rows(names: Iterable[str] = tuple(NETWORKS)) -> Iterator[Row]:
    """Yield the bytes of every side for every network."""
    for name in names:
        proto = NETWORKS[name]()
        graph = from_proto(proto).graph
        plan = plan_memory(graph)
        apart = plan_memory(graph, Options(strategy="no_reuse", share=False))
        problem = tensors_as_problem(graph, plan.alignment)
        packing = best_fit_with_reuse(problem)
        check_packing(problem, packing)
        yield exact_row(name, NO_REUSE, apart.arena_bytes)
        yield exact_row(name, STATIC_PLANNER, packing.arena_bytes)
        if is_installed("onnxsim"):
            peer = import_module("benchmarks.compare_onnxsim")
            simplified = peer.simplified(proto)
            if simplified is not None and not (planned := peer.rival(simplified)).left_out:
                yield exact_row(name, "onnxsim", planned.nbytes)
        yield exact_row(name, "Sublet", plan.arena_bytes)
        yield exact_row(name, BOUND, plan.lower_bound_bytes)


if __name__ == "__main__":
    for row in result_rows():
        print(f"{row.case}: {row.series}: {row.value:,} bytes", flush=True)
