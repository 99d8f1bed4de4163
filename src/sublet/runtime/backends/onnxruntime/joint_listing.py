"""A listing of several nodes for one session: operands get names of the listing, and keep their addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.base.optional_imports import require
from sublet.base.tensor import DType, TensorSpec
from sublet.runtime.backends.onnx_nodes import single_node
from sublet.runtime.backends.onnxruntime.session import Listing, Session, Typed
from sublet.runtime.backends.onnxruntime.session_node import Key, SessionNode, SessionOperands
from sublet.runtime.kernel import Array, Call
from sublet.runtime.node_copies import ByteCopies

if TYPE_CHECKING:
    import onnx


@dataclass
class JointListing:
    """A listing grown node by node. Every operand has a distinct name, unless nodes read the same value.

    members   the key of the listing among listings of the same nodes
    owners    the value of each operand
    operands  for each node the names of its inputs and outputs
    """

    opsets: Mapping[str, int]
    inputs: dict[str, tuple[Typed, int]] = field(default_factory=dict)
    outputs: dict[str, tuple[Typed, int]] = field(default_factory=dict)
    constants: dict[str, tuple[TensorSpec, Array]] = field(default_factory=dict)
    imports: dict[str, int] = field(default_factory=dict)
    protos: list[onnx.NodeProto] = field(default_factory=list)
    members: list[Key] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)
    operands: list[tuple[str, ...]] = field(default_factory=list)
    _names: dict[Any, str] = field(default_factory=dict)

    def add(self, form: SessionNode, read: SessionOperands, written: SessionOperands) -> None:
        """Append a node."""
        renamed: dict[str, str] = {}
        for name, (spec, array) in form.constants.items():
            renamed[name] = self._names.setdefault((spec, array.ctypes.data), f"c{len(self._names)}")
            self.constants[renamed[name]] = (spec, array)
        for place in read:
            (_, spec), address = place.address
            renamed[place.name] = self._add_input(place.value.name, spec, address, place.value.name)
        for place in written:
            (_, spec), address = place.address
            renamed[place.name] = self._add_output(spec, address, place.value.name)
        self.operands.append(tuple(renamed[place.name] for place in (*read, *written)))
        proto = single_node(form.node, self.opsets)
        proto.name = form.node.name
        proto.input[:] = [renamed.get(name, "") for name in proto.input]
        proto.output[:] = [renamed.get(name, "") for name in proto.output]
        self.protos.append(proto)
        self.members.append((form.key, *proto.input))
        self.imports.update(form.imports(self.opsets))

    def add_copies(self, copies: ByteCopies) -> None:
        """Append the copies, each as an Identity node over bytes."""
        make_node = require("onnx.helper", extra="onnx").make_node
        operands: list[str] = []
        for (source, to), (read, written) in zip(copies.pairs, copies.values, strict=True):
            spec, address = TensorSpec(DType.U8, (source.size,)), source.ctypes.data
            names = (
                [self._add_input((read, address, source.size), spec, address, read)],
                [self._add_output(spec, to.ctypes.data, written)],
            )
            self.protos.append(make_node("Identity", *names))
            self.members.append((spec, *names[0]))
            operands += [*names[0], *names[1]]
        self.operands.append(tuple(operands))

    def _add_input(self, what: Any, spec: TensorSpec, address: int, value: str) -> str:
        """Add an input and return the name."""
        name = self._names.setdefault(what, f"r{len(self._names)}")
        self.inputs[name] = (name, spec), address
        self.owners[name] = value
        return name

    def _add_output(self, spec: TensorSpec, address: int, value: str) -> str:
        """Add an output and return the name."""
        name = f"w{len(self.outputs)}"
        self.outputs[name] = (name, spec), address
        self.owners[name] = value
        return name

    @property
    def listing(self) -> Listing:
        """The listing of the nodes added so far."""
        inputs = [typed for typed, _ in self.inputs.values()]
        outputs = [typed for typed, _ in self.outputs.values()]
        return Listing(self.protos, inputs, outputs, self.constants, self.imports)

    def bind_session(self, session: Session) -> Call:
        """Return a call of a session over the listing."""
        return session.bind_addresses(
            list(self.inputs.values()), list(self.outputs.values()), self.owners, self.operands
        )


def are_disjoint(copies: ByteCopies) -> bool:
    """True if no copy reads bytes written by the copies: ONNX Runtime copies without checking for overlap."""
    return not any(np.may_share_memory(source, to) for source, to in copies.pairs)
