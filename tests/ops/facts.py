"""ONNX operators run at every layout their facts allow, by every backend.

The cases are ONNX's own tests of operators, and those of `tests.ops.test_onnx_inplace`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests

from sublet.base.arrays import is_packed, pack
from sublet.base.errors import SubletError
from sublet.base.tensor import TensorSpec
from sublet.integrations.onnx.kernels.session_node import captured_names
from sublet.integrations.onnx.reader.model import from_proto
from sublet.ir.graph import CaseOf, Node, Value, While
from sublet.ir.model import Model
from sublet.ops import lookup
from sublet.runtime.backends import backend_factories
from sublet.runtime.kernel import Array
from tests.support.kernel_layouts import alike, layouts, legal, planned, prepared, run

APART = 64
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Case:
    """A model of one node, with what it is fed."""

    name: str
    model: Model
    feeds: Mapping[str, Array]


@cache
def tests() -> dict[str, Any]:
    """ONNX's tests of operators."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {test.name: test for test in load_model_tests(kind="node")}


def case_named(name: str) -> Case | None:
    """One of ONNX's tests; None if it has more than one node, values that cannot be planned, or is random.

    Inputs of integers are constants where shapes depend on them.
    """
    proto, ((arrays, _), *_) = tests()[name].model, tests()[name].data_sets
    feeds = list(arrays)
    if len(feeds) != len(proto.graph.input) or not all(isinstance(feed, np.ndarray) for feed in feeds):
        return None
    return case_of(name, proto, feeds) or case_of(name, *_fixed(proto, feeds))


def _fixed(proto: onnx.ModelProto, feeds: Sequence[Array]) -> tuple[onnx.ModelProto, list[Array]]:
    """The model with its inputs of 64-bit integers as constants."""
    fixed = onnx.ModelProto.FromString(proto.SerializeToString())
    pairs = list(zip(proto.graph.input, feeds, strict=True))
    del fixed.graph.input[:]
    fixed.graph.input.extend(info for info, feed in pairs if feed.dtype != np.int64)
    fixed.graph.initializer.extend(
        onnx.numpy_helper.from_array(feed, info.name) for info, feed in pairs if feed.dtype == np.int64
    )
    return fixed, [feed for _, feed in pairs if feed.dtype != np.int64]


def case_of(name: str, proto: onnx.ModelProto, feeds: Sequence[Array]) -> Case | None:
    """A model of one node as a case; None where it is none."""
    try:
        model = from_proto(proto)
    except SubletError:
        return None
    graph = model.graph
    if len(graph.nodes) != 1 or isinstance(graph.nodes[0], While | CaseOf) or not lookup(graph.nodes[0].op).pure:
        return None
    if captured_names(graph.nodes[0]) or not all(isinstance(value.spec, TensorSpec) for value in graph.values()):
        return None
    given = {value.name: bits(value, array) for value, array in zip(graph.inputs, feeds, strict=True)}
    return None if sum(value.nbytes for value in graph.values()) > MOST_BYTES else Case(name, model, given)


def bits(value: Value, content: Array) -> Array:
    assert isinstance(value.spec, TensorSpec)
    return pack(content, value.spec) if is_packed(value.spec) else np.asarray(content)


def same(source: Value, result: Value) -> Node:
    """A node whose output is a view."""
    return Node("view", "onnx.Identity", (source,), (result,))


def check_case(case: Case, backend: str, alignments: Sequence[int], seen: Counter[str]) -> None:
    """Run the node at all layouts. Raises AssertionError where one gives other results than with nothing shared."""
    model = case.model
    made = backend_factories()[backend](model)
    weights = {value: bits(value, model.weights[value.name].array()) for value in model.graph.weights}
    for graph, like in alike(model.graph, same):
        try:
            scratched, kernels = prepared(graph, [made], weights)
        except SubletError:
            seen["no kernel"] += 1
            continue
        given = weights | {value: case.feeds[like.get(value.name, value.name)] for value in graph.inputs}
        plan = planned(scratched, (), APART)
        assert plan is not None
        try:
            apart = run(scratched, kernels, plan, given)
        except AssertionError:
            raise
        except Exception:  # what a backend cannot compute at all is nothing about memory
            seen["not computed"] += 1
            continue
        for layout in layouts(scratched):
            if not legal(scratched, layout):
                seen["refused"] += 1
                continue
            for alignment in alignments:
                at = planned(scratched, layout, alignment)
                if at is None:
                    continue
                seen["shared" if layout else "apart"] += 1
                what = f"{case.name} on {backend}: {layout} at alignment {alignment}"
                try:
                    found = run(scratched, kernels, at, given)
                except Exception as error:
                    raise AssertionError(f"{what}: {error}") from error
                for value in graph.outputs:
                    assert close(found[value], apart[value]), f"{what}: {found[value]} instead of {apart[value]}"


def close(a: Array, b: Array) -> bool:
    """The same bits, or all but the last ones where sums may be made in another order."""
    if a.tobytes() == b.tobytes():
        return True
    if a.dtype.kind not in "fcV":
        return False
    wide = [x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (a, b)]
    return bool(np.allclose(*wide, rtol=1e-5, atol=1e-6, equal_nan=True))


@cache
def names() -> list[str]:
    return sorted(tests())
