"""Operands as an ONNX Runtime session takes them: by address, or as arrays where the plan knows no place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sublet.base.extras import require
from sublet.errors import RunError
from sublet.ir.graph import Node, Value
from sublet.ops.onnx import PREFIX
from sublet.runtime.backends.onnx_nodes import input_names
from sublet.runtime.backends.onnxruntime.form import declared, form_of, output_names
from sublet.runtime.backends.onnxruntime.session import Listing, Session, Typed
from sublet.runtime.dtypes import NUMPY
from sublet.runtime.kernel import Array, Call, Cell, Operand
from sublet.tensor import DType, TensorSpec, Unplannable


@dataclass(frozen=True)
class Place:
    """An operand that a session is given at each run."""

    name: str
    value: Value
    operand: Operand

    @property
    def address(self) -> tuple[Typed, int]:
        """Name, spec and address of a planned operand."""
        assert isinstance(self.value.spec, TensorSpec)
        assert not isinstance(self.operand, Cell)
        return (self.name, self.value.spec), self.operand.ctypes.data

    @property
    def content(self) -> Any:
        """What lies there now."""
        return self.operand.content if isinstance(self.operand, Cell) else self.operand


Placed = Sequence[Place]


def placed(
    names: Sequence[str], values: Sequence[Value | None], operands: Sequence[Operand | None], held: Mapping[str, Any]
) -> Placed:
    """The operands that are present, without the constants that the session holds."""
    found: list[Place] = []
    for name, value, operand in zip(names, values, operands, strict=True):
        if value is not None and operand is not None and name not in held:
            found.append(Place(name, value, operand))
    return found


def through_arrays(session: Session, read: Placed, written: Placed) -> Call:
    """A call for a node with values outside the plan: ONNX Runtime allocates, what is planned is copied."""

    def run() -> None:
        for content, place in zip(session.run({p.name: p.content for p in read}), written, strict=True):
            _put(content, place)

    return run


def _put(content: Any, place: Place) -> None:
    operand = place.operand
    if isinstance(operand, Cell):
        operand.content = content
        return
    array = np.asarray(content)
    if array.shape != operand.shape or array.dtype != operand.dtype:
        found = f"{array.dtype}{list(array.shape)}"
        raise RunError(f"{place.value} turned out to be {found}, not {place.value.spec}")
    operand[...] = array


def contributed(node: Node) -> bool:
    """Whether the operator is ONNX Runtime's own, so that nobody else has a kernel for it."""
    return node.op.startswith(f"{PREFIX}com.microsoft") or node.op == f"{PREFIX}SimplifiedLayerNormalization"


@dataclass(frozen=True)
class LateKernel:
    """A node some of whose types are known only when it runs: a session is made then, for what is there."""

    node: Node
    opsets: Mapping[str, int]
    threads: int
    scratch: int = 0
    keeps: bool = True
    _sessions: dict[tuple[TensorSpec, ...], Session] = field(default_factory=dict, repr=False)

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        read = placed(input_names(self.node), self.node.inputs, inputs, {})
        written = placed(output_names(self.node), self.node.outputs, outputs, {})

        def run() -> None:
            session = self._session(read)
            through_arrays(session, read, written)()

        return run

    def _session(self, read: Placed) -> Session:
        specs = {place.value: _spec_of(place) for place in read}
        key = tuple(specs.values())
        if key not in self._sessions:
            inputs = tuple(value and replace(value, spec=specs[value]) for value in self.node.inputs)
            form = form_of(replace(self.node, inputs=inputs, outputs=()), {})
            assert form is not None
            named = zip(output_names(self.node), self.node.outputs, strict=True)
            results = [_result(name, value) for name, value in named if value]
            listing = form.listing(self.opsets)
            for i, name in enumerate(output_names(self.node)):
                listing.nodes[0].output.insert(i, name)
            self._sessions[key] = Session(
                Listing(listing.nodes, listing.inputs, results, {}, listing.opsets), self.threads
            )
        return self._sessions[key]


def _result(name: str, value: Value) -> Any:
    """The declaration of an output, of which not even the type need be known."""
    known = declared(name, value.spec) if isinstance(value.spec, Unplannable) else None
    return known or require("onnx.helper", extra="onnx").make_empty_tensor_value_info(name)


_DTYPES: dict[np.dtype[Any], DType] = {dtype: ours for ours, dtype in NUMPY.items()}


def _spec_of(place: Place) -> TensorSpec:
    content = np.asarray(place.content)
    if content.dtype not in _DTYPES:
        raise RunError(f"{place.value} is {content.dtype}, which ONNX Runtime does not take here")
    return TensorSpec(_DTYPES[content.dtype], content.shape)
