"""`torch.export` programs as models: weights stay PyTorch's memory, buffers that a run changes are updates."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ml_dtypes
from numpy.typing import NDArray

from sublet.errors import ModelError
from sublet.frontends.torch.conversion import Conversion
from sublet.frontends.torch.tensors import Tensor, torch
from sublet.frontends.torch.traced import convert_traced
from sublet.ir.graph import Graph, Value
from sublet.ir.model import Model
from sublet.ops.verify import verify


@dataclass(frozen=True)
class Held:
    """A tensor of PyTorch's as the content of a weight: its bytes, no copy."""

    tensor: Any
    shape: tuple[int, ...]

    def array(self) -> NDArray[Any]:
        """The elements in the order in which they lie in memory."""
        t, flat = torch(), self.tensor.detach()
        order = sorted(range(flat.dim()), key=lambda axis: -flat.stride(axis))
        dense = flat.permute(order).contiguous().reshape(self.shape)
        if dense.dtype == t.bfloat16:
            found: NDArray[Any] = dense.view(t.int16).numpy().view(ml_dtypes.bfloat16)
            return found
        if dense.dtype.is_floating_point and dense.dtype.itemsize == 1:
            name = str(dense.dtype).removeprefix("torch.")
            found = dense.view(t.uint8).numpy().view(getattr(ml_dtypes, name))
            return found
        found = dense.numpy()
        return found


def from_exported(program: Any, where: str = "program") -> Model:
    """An exported program, functionalised and without composite operators, as a model.

    Raises ModelError for what cannot be planned, with the line of the user's program.
    """
    with quietly():
        program = program.run_decompositions({})  # as far as `torch.export` takes composite operators apart by itself
    conversion = Conversion(where=where)
    level = conversion.root()
    signature = program.graph_signature
    contents = {**program.state_dict, **program.constants}
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    given: list[Any] = []
    inputs: dict[str, Tensor] = {}
    homes: dict[str, Tensor] = {}
    for spec, node in zip(signature.input_specs, placeholders, strict=True):
        fake = node.meta.get("val")
        kind = spec.kind.name
        if kind == "USER_INPUT":
            if not hasattr(fake, "stride"):
                given.append(fake)
                continue
            given.append(conversion.given(node.name, fake))
            inputs[node.name] = homes[node.name] = given[-1]
        elif kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            given.append(conversion.weight(spec.target, contents[spec.target]))
            homes[spec.target] = given[-1]
        else:
            raise ModelError(f"{where}: the input {node.name} is a {kind.lower()}, which cannot be planned")
    results = convert_traced(level, program.graph_module, given)
    outputs: dict[str, Value] = {}
    updates: list[tuple[Value, Value]] = []
    for spec, result in zip(signature.output_specs, results, strict=True):
        kind = spec.kind.name
        if kind in ("BUFFER_MUTATION", "USER_INPUT_MUTATION"):
            home = homes[spec.target]
            updates.append((home.value, level.like(result, home).value))
        elif kind == "USER_OUTPUT" and isinstance(result, Tensor):
            outputs[f"{spec.arg.name}.{len(outputs)}" if spec.arg.name in outputs else spec.arg.name] = level.whole(
                result
            ).value
        elif kind != "USER_OUTPUT":
            raise ModelError(f"{where}: the output {spec.arg} is a {kind.lower()}, which cannot be planned")
    return _model(conversion, level.emitter.nodes, inputs, outputs, updates)


def held(tensors: Mapping[Value, Any]) -> dict[str, Held]:
    """Tensors of PyTorch's as the contents of weights."""
    return {value.name: Held(each, value.spec.shape) for value, each in tensors.items()}  # type: ignore[union-attr]


@contextmanager
def quietly() -> Iterator[None]:
    """PyTorch traces with functions, and reads attributes, that it warns of itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _model(
    conversion: Conversion,
    nodes: Sequence[Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Value],
    updates: Sequence[tuple[Value, Value]],
) -> Model:
    weights = (*conversion.weights, *conversion.literals.added)
    graph = Graph(
        conversion.where, tuple(each.value for each in inputs.values()), tuple(nodes), tuple(outputs.values()),
        weights, tuple(updates),
    )  # fmt: skip
    verify(graph)
    return Model(graph, weights=held(conversion.weights), inputs=tuple(inputs), outputs=tuple(outputs))
