"""Random models of operators that ONNX has no rule for, shapes that depend on data, and claims that are not so.

Every value that is planned must come out in ONNX Runtime with the planned type and shape, whichever way the model is
imported; what ONNX Runtime refuses must not be planned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from rich.console import Console

import sublet
from sublet.base.errors import ModelError, RunError
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.integrations.onnx.reader.model import from_proto
from sublet.integrations.onnx.reader.runtime_optimizer import load_optimized_proto
from sublet.ir.model import Model
from sublet.plan.verdict import verdict
from sublet.planning.pipeline import plan_memory
from sublet.viz.summary import render_verdict
from tests.integrations.onnx import shape_cases

Array = np.ndarray[Any, Any]
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
NUMPY_TYPES = {dtype: name for name, dtype in NUMPY.items()}
ALIKE = ("Relu", "Neg", "Abs", "Exp", "Identity", "com.microsoft.Gelu", "com.microsoft.QuickGelu", "com.microsoft.Silu")


@dataclass
class Writing:
    """A model being written: `f32` are the names of floating-point values, `known` those of a shape it knows."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    f32: list[str] = field(default_factory=list)
    i64: list[str] = field(default_factory=list)

    def node(self, op: str, inputs: list[str], outputs: int = 1, **attrs: Any) -> list[str]:
        domain, _, op_type = op.rpartition(".")
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, domain=domain, **attrs))
        return names

    def weight(self, array: Array) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def any(self) -> str:
        return str(self.rng.choice(self.f32))


def _alike(w: Writing) -> None:
    w.f32 += w.node(str(w.rng.choice(ALIKE)), [w.any()])


def _added(w: Writing) -> None:
    w.f32 += w.node("Add", [w.any(), w.any()])


def _multiplied(w: Writing) -> None:
    flips = {"transA": int(w.rng.integers(2)), "transB": int(w.rng.integers(2))}
    fused = bool(w.rng.integers(2))
    op = "com.microsoft.FusedMatMul" if fused else "MatMul"
    w.f32 += w.node(op, [w.any(), w.any()], **(flips if fused else {}))


def _selected(w: Writing) -> None:
    """As many rows as the data says."""
    flat = w.node("Reshape", [w.any(), w.weight(np.array([-1]))])
    positive = w.node("Greater", [*flat, w.weight(np.array(0, np.float32))])
    w.f32 += w.node("Compress", [*flat, *positive], axis=0)
    w.i64 += w.node("NonZero", positive)


def _distinct(w: Writing) -> None:
    values, *_ = w.node("Unique", [w.any()], 2)
    w.f32.append(values)


def _reshaped(w: Writing) -> None:
    target = w.rng.choice([np.array([-1, 2]), np.array([2, -1]), np.array([0, -1]), np.array([3, 4])], axis=0)
    w.f32 += w.node("Reshape", [w.any(), w.weight(target)])


def _reduced(w: Writing) -> None:
    w.f32 += w.node("ReduceSum", [w.any()], keepdims=int(w.rng.integers(2)))


def _measured(w: Writing) -> None:
    value = w.any()
    w.i64 += w.node("Shape", [value])
    size = w.node("Size", [value])
    w.f32 += w.node("Cast", size, to=1)
    w.f32 += w.node("ConstantOfShape", [w.i64[-1]])


def _attended(w: Writing) -> None:
    value = w.any()
    outputs = int(w.rng.integers(1, 4))
    w.f32 += w.node("com.microsoft.MultiHeadAttention", [value, value, value], outputs, num_heads=2)


def _joined(w: Writing) -> None:
    weights, bias = (w.weight(np.ones(shape, np.float32)) for shape in ((4, 12), (12,)))
    w.f32 += w.node("com.microsoft.Attention", [w.any(), weights, bias], num_heads=2)


def _topmost(w: Writing) -> None:
    """As many as another value has rows."""
    rows = w.node("Gather", [w.node("Shape", [w.any()])[0], w.weight(np.array([0]))])
    w.f32.append(w.node("TopK", [w.any(), *rows], 2)[0])


def _normalised(w: Writing) -> None:
    scale = w.weight(np.ones(int(w.rng.choice([2, 4])), np.float32))
    op = str(w.rng.choice(["com.microsoft.SkipLayerNormalization", "LayerNormalization"]))
    value = w.any()
    w.f32 += w.node(op, [value, value, scale] if "." in op else [value, scale])


def _transposed(w: Writing) -> None:
    w.f32 += w.node("Transpose", [w.any()])


def _inverted(w: Writing) -> None:
    w.f32 += w.node("com.microsoft.Inverse", [w.any()])


def _unruled(w: Writing) -> None:
    """Operators of ONNX Runtime that Sublet has no rule for."""
    kind = int(w.rng.integers(3))
    if kind == 0:
        w.f32 += w.node("com.microsoft.Trilu", [w.any()])
    elif kind == 1:
        w.f32 += w.node("com.microsoft.ExpandDims", [w.any(), w.weight(np.array([0], np.int32))])
    else:
        flat = w.node("Reshape", [w.any(), w.weight(np.array([-1]))])
        w.f32.append(w.node("com.microsoft.Unique", flat, 3)[0])


STEPS: tuple[Callable[[Writing], None], ...] = (
    *(_alike, _added, _multiplied, _selected, _distinct, _reshaped),
    *(_reduced, _measured, _attended, _joined, _topmost, _normalised, _transposed, _inverted),
    *(_unruled, _unruled, _unruled),
)
SHAPES = ([2, 4], [4, 2], [1, 3, 4], [2, 3, 4], [4], [], [4, 4], [1, 4])


def written(rng: np.random.Generator) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of a few nodes, with all it computes as outputs, and inputs for it."""
    w = Writing(rng)
    feeds = {f"x{i}": rng.normal(size=SHAPES[int(rng.integers(len(SHAPES)))]).astype(np.float32) for i in range(2)}
    w.f32 = list(feeds)
    for _ in range(int(rng.integers(1, 7))):
        STEPS[int(rng.integers(len(STEPS)))](w)
    inputs = [helper.make_tensor_value_info(name, 1, array.shape) for name, array in feeds.items()]
    names = [name for node in w.nodes for name in node.output]
    outputs = [helper.make_empty_tensor_value_info(name) for name in names]
    graph = helper.make_graph(w.nodes, "g", inputs, outputs, w.weights)
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=9), feeds


def with_claims(rng: np.random.Generator, model: onnx.ModelProto, actual: dict[str, Array]) -> onnx.ModelProto:
    """The model with claims about some of its values; some are not so. What is claimed is true of their types.

    Only some of them stay outputs, so that shapes may be all that is asked of the others.
    """
    made = onnx.ModelProto.FromString(model.SerializeToString())
    for output in made.graph.output:
        if output.name in actual and rng.random() < 0.3:
            shape = list(actual[output.name].shape)
            if shape and rng.random() < 0.5:
                shape[int(rng.integers(len(shape)))] += 1
            kind = helper.np_dtype_to_tensor_dtype(actual[output.name].dtype)
            output.CopyFrom(helper.make_tensor_value_info(output.name, kind, shape))
    if actual and rng.random() < 0.5:
        inner = [output for output in made.graph.output[:-1] if rng.random() < 0.7]
        made.graph.value_info.extend(inner)
        for output in inner:
            made.graph.output.remove(output)
    return made


def ran(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array] | None:
    """What ONNX Runtime computes; None when it refuses."""
    said = shape_cases.ran(model, feeds)
    return None if isinstance(said, str) else said


def _hold(where: str, imported: Model, actual: dict[str, Array] | None) -> None:
    """Compare every planned output with what came out."""
    if actual is None:
        assert imported.graph.unplannable_values, f"{where}: all is planned, and ONNX Runtime refuses it"
        return
    for name, value in zip(imported.outputs, imported.graph.outputs, strict=True):
        if isinstance(value.spec, TensorSpec):
            found = actual[name]
            fits = found.shape == value.spec.shape and found.dtype == NUMPY[value.spec.dtype]
            assert fits, (
                f"{where}: {name} is planned as {value.spec}, and comes out as {found.dtype}{list(found.shape)}"
            )


def check(seed: int) -> str:
    """Write, run and import one model; what became of it. Raises AssertionError for a false word."""
    rng = np.random.default_rng(seed)
    for _ in range(4):  # most models of random shapes contradict themselves: prefer those that do not
        model, feeds = written(rng)
        actual = ran(model, feeds)
        if actual is not None or rng.random() < 0.2:
            break
    try:
        read = {"as it is": from_proto(model), "optimised": load_optimized_proto(model)}
    except ModelError as error:
        if actual is not None:
            raise AssertionError(f"seed {seed}: refused, and ONNX Runtime runs it: {error}") from error
        return "refused"
    for way, imported in read.items():
        _hold(f"seed {seed}, {way}", imported, actual)
    proto = with_claims(rng, model, actual or {})
    try:
        claimed = from_proto(proto)
    except ModelError:
        return "refused"
    if not claimed.recipe.declared:
        _hold(f"seed {seed}, with claims", claimed, actual)
    else:
        _hold_claims(f"seed {seed}, with claims", proto, feeds, actual)
        return "believed"
    return "ran" if actual else "refused"


def _hold_claims(where: str, proto: onnx.ModelProto, feeds: dict[str, Array], actual: dict[str, Array] | None) -> None:
    """What rests on the file's word says so, and a run in which that is not so is an error."""
    imported = from_proto(proto)
    plan = plan_memory(imported)
    named = [name for name, _ in imported.recipe.declared]
    for budget in (0, plan.arena_bytes, 1 << 40):
        words = _printed(render_verdict(verdict(plan, budget), plan))
        conditional = f"{named[0]} is" in words and "as the file declares" in words
        assert conditional or words.startswith("Unknown"), f"{where}: {words}"
    if actual is None:
        return
    true = all(type == _type(actual[name]) for name, type in imported.recipe.declared)
    try:
        outcome = sublet.compile(proto, optimize="none")(feeds)
    except RunError as error:
        if true:
            raise AssertionError(f"{where}: what the file declares is so, and its run fails: {error}") from error
        return
    kept = {name: array for name, array in outcome.items() if isinstance(array, np.ndarray)}
    assert true, f"{where}: {imported.recipe.declared} is not so, and the run gives {kept}"
    for name, array in kept.items():
        assert array.shape == actual[name].shape, f"{where}: {name} comes out as {array.shape}"


def _type(array: Array) -> str:
    return str(TensorSpec(NUMPY_TYPES[array.dtype], array.shape))


def _printed(what: Any) -> str:
    console = Console(width=1000, file=StringIO(), record=True)
    console.print(what)
    return console.export_text()
