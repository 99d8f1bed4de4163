"""ONNX operators under the facts they may be run under, at every alignment, by every backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx
import pytest

from sublet import Options, compile, parse, run_poisoned
from sublet.integrations.onnx.dialect import INPLACE
from tests.ops.facts import case_of, check_case
from tests.ops.test_onnx_inplace import cases, model_of
from tests.support.kernel_layouts import ALIGNMENTS

LARGEST = 100_000
TYPES = 2
"""Cases of so many element types of each operator; `tests.fuzz_kernels --kind operators` takes ONNX's own tests."""


@pytest.mark.parametrize("backend", ["onnxruntime", "numpy", "reference"])
def test_operators_run_at_every_layout_their_facts_allow(backend: str) -> None:
    seen: Counter[str] = Counter()
    for i, (what, proto, arrays) in enumerate(chosen()):
        case = case_of(what, proto, arrays)
        if case is not None:
            check_case(case, backend, (1, ALIGNMENTS[1 + i % 5]), seen)
    assert seen["shared"] > 100, seen


def chosen() -> Iterator[tuple[str, onnx.ModelProto, list[np.ndarray]]]:
    """A few small cases of every operator with an in-place fact."""
    for op in INPLACE:
        taken: set[object] = set()
        for case in cases(op):
            kind = case.arrays[0].dtype, tuple(array.shape for array in case.arrays)
            if case.opset > 11 and kind not in taken and len(taken) < TYPES and case.arrays[0].size < LARGEST:
                taken.add(kind)
                yield f"{op}-{case.opset} {kind}", model_of(case), case.arrays


@pytest.mark.parametrize("alignment", [1, 2, 4])
@pytest.mark.parametrize("shapes", [("[2,2]", "[2,2]", "[2,2]"), ("[2]", "[2]", "[]"), ("[3,2,2]", "[2,2]", "[3,2,2]")])
def test_matrix_products_of_numpy_at_odd_addresses(shapes: tuple[str, str, str], alignment: int) -> None:
    a, b, y = (f"f32{shape}" for shape in shapes)
    graph = parse(
        f"graph @g(%flag: bool[1], %a: {a}, %b: {b}) "
        f"{{ %not: bool[1] = onnx.Not(%flag) %y: {y} = onnx.MatMul(%a, %b) return %not, %y, %a, %b }}"
    )
    executable = compile(graph, backend=["numpy", "reference"], options=Options(alignment=alignment))
    assert executable.nodes_of_backends == {"numpy": 2}
    random = np.random.default_rng(0)
    feeds = {v.name: random.normal(size=v.spec.shape).astype("f") for v in graph.inputs[1:]} | {
        "flag": np.array([True])
    }  # type: ignore[union-attr]
    for found in (executable(feeds), run_poisoned(executable, feeds)):
        np.testing.assert_allclose(found["y"], feeds["a"] @ feeds["b"], rtol=1e-6)


def test_what_facts_do_not_explain_in_full_is_no_fact() -> None:
    """Of elements that share a byte only some pieces begin at one: such a node has no views and no parts."""
    graph = parse(
        "graph @g(%a: i4[2], %b: i4[3], %c: i4[3]) "
        "{ %y: i4[8] = onnx.Concat(%a, %b, %c) {axis = 0} %p: i4[2], %q: i4[3], %r: i4[3] = onnx.Split(%y) {axis = 0} "
        "return %p, %q, %r }"
    )
    executable = compile(graph, backend="reference", options=Options(alignment=1))
    assert {placement.how for placement in executable.plan.placements} == {"own"}
