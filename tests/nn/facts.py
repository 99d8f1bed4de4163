"""Commands run at every layout their facts allow: what a kernel does must be what its record says.

python -m tests.fuzz_kernels --kind facts --seconds 600 --seed 1
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np

from sublet.base.tensor import NUMPY, DType
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import spec_of
from sublet.runtime.backends.reference import ReferenceBackend
from sublet.runtime.kernel import Backend
from sublet.runtime.kernel_choice import Kernels
from tests.nn.examples import EXAMPLES, Array, Case
from tests.nn.variations import variation
from tests.support.kernel_layouts import ALIGNMENTS, alike, layouts, legal, planned, prepared, run, some

TOLERANCE = {DType.F64: 1e-10, DType.F32: 2e-5, DType.F16: 2e-2, DType.BF16: 1e-1}
APART = 64
MANY = 1 << 30
REFERENCE = ReferenceBackend()
ANY_BYTES = {"undefined"}
"""Commands whose results may be any bytes, so that there is nothing to compare."""


def reshaped(source: Value, result: Value) -> Node:
    """A node whose output is a view."""
    return Node("view", "nn.reshape", (source,), (result,), {"shape": spec_of(result).shape})


def expected(graph: Graph, given: dict[Value, Array]) -> dict[Value, Array]:
    """What the records compute, no memory shared."""
    known = dict(given)
    for node in graph.nodes:
        results = [np.empty(spec_of(v).shape, NUMPY[spec_of(v).dtype]) if v else None for v in node.outputs]
        kernel = REFERENCE.kernel(node, {})
        assert kernel is not None
        kernel.bind([known[v] if v else None for v in node.inputs], results, None)()
        known |= {
            value: result for value, result in zip(node.outputs, results, strict=True) if value and result is not None
        }
    return {value: known[value] for value in graph.outputs}


def weights(graph: Graph) -> dict[Value, Array]:
    return {v: np.array(v.literal, NUMPY[spec_of(v).dtype]).reshape(spec_of(v).shape) for v in graph.weights}


def check_case(case: Case, backend: Backend, alignments: Sequence[int], seen: Counter[str], most: int = MANY) -> None:
    """Run the node of a case at all layouts, or `most` drawn from them, of so many graphs.

    Raises AssertionError where a result is not the record's.
    """
    for graph, like in some(list(alike(case.graph, reshaped)), most):
        scratched, kernels = prepared(graph, [backend, REFERENCE], {})
        chosen = kernels[graph.nodes[-1].name]
        if chosen is not None and chosen.backend != backend.name:
            continue
        given = weights(graph) | {value: case.arrays[like.get(value.name, value.name)] for value in graph.inputs}
        check_layouts(scratched, kernels, alignments, given, expected(graph, given), seen, most)


def check_layouts(
    graph: Graph,
    kernels: Kernels,
    alignments: Sequence[int],
    given: dict[Value, Array],
    right: dict[Value, Array],
    seen: Counter[str],
    most: int,
) -> None:
    plan = planned(graph, (), APART)
    assert plan is not None
    apart = run(graph, kernels, plan, given)
    for value in graph.outputs:
        nearly(apart[value], right[value], value, f"{graph.nodes[-1]}, nothing shared")
    for layout in some(list(layouts(graph)), most):
        if not legal(graph, layout):
            seen["refused"] += 1
            continue
        for alignment in alignments:
            plan = planned(graph, layout, alignment)
            if plan is None:
                continue
            seen["shared" if layout else "apart"] += 1
            what = f"{graph.nodes[-1]} with {_told(layout)} at alignment {alignment}"
            try:
                found = run(graph, kernels, plan, given)
            except Exception as error:
                raise AssertionError(f"{what}: {error}") from error
            for value in graph.outputs:
                close(found[value], apart[value], value, what)


def _told(layout: Sequence[tuple[Value, Value, int]]) -> str:
    return ", ".join(f"{child} at {offset} of {parent}" for child, parent, offset in layout) or "nothing shared"


def close(actual: Array, right: Array, value: Value, what: str, scale: float = 1) -> None:
    tolerance = TOLERANCE.get(spec_of(value).dtype, 0)
    wide = [array.astype(np.float64) if array.dtype.kind in "fV" else array for array in (actual, right)]
    np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance * scale, err_msg=what)


def nearly(actual: Array, right: Array, value: Value, what: str) -> None:
    """Equal but for what is lost where large numbers cancel out."""
    finite = np.abs(right[np.isfinite(right)].astype(np.float64)) if right.dtype.kind in "fV" else np.zeros(0)
    close(actual, right, value, what, scale=100 * max(1.0, finite.max(initial=0)))


def generated(seed: int, backend: Backend, seen: Counter[str]) -> None:
    """One variation of an example of some command, at all layouts and alignments."""
    rng = random.Random(seed)
    record = rng.choice(list(COMMANDS.values()))
    case = variation(record, rng.choice(EXAMPLES[record.name]), rng)
    if case is None or record.name in ANY_BYTES:
        seen["not taken"] += 1
        return
    seen["cases"] += 1
    check_case(case, backend, ALIGNMENTS, seen)
