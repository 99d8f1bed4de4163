"""A node converted to ONNX: a NodeProto, and the node as seen by a session, with types, constants and addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.base.errors import SubletError
from sublet.base.optional_imports import require
from sublet.base.tensor import NUMPY, DType, TensorSpec, Unplannable
from sublet.integrations.onnx.dialect import BINARY, EXTREMES, PREFIX, UNARY, VARIADIC
from sublet.integrations.onnx.kernels.session import (
    ArraySession,
    Constants,
    Listing,
    Session,
    Typed,
    element_type,
    is_inlined,
)
from sublet.ir.graph import Attr, Node, Value
from sublet.runtime.kernel import Array, BindAtPoint, Call, Operand, PlaceNumbers, UnplannedCell, array_at, store
from sublet.runtime.moves import ByteCopies

if TYPE_CHECKING:
    import onnx

CAPTURES = ".captures"


def domain_and_type(op: str) -> tuple[str, str]:
    """Return ("com.microsoft", "Gelu") for "onnx.com.microsoft.Gelu"; the default domain is ""."""
    domain, _, op_type = op.removeprefix(PREFIX).rpartition(".")
    return domain, op_type


def captured_names(node: Node) -> tuple[str, ...]:
    """Return the outer names read by the serialised graphs of the node: the names of its last inputs."""
    names: list[str] = []
    for key, attr in node.attrs.items():
        if key.endswith(CAPTURES) and isinstance(attr, tuple):
            names += [str(name) for name in attr]
    return tuple(names)


def single_node(node: Node, opsets: Mapping[str, int]) -> onnx.NodeProto:
    """Return the node with operands named i0, i1, ... and o0, o1, ...; names captured by its graphs are kept.

    Raises ValueError when an attribute does not match the declaration of its operator.
    """
    helper = require("onnx.helper", extra="onnx")
    domain, op_type = domain_and_type(node.op)
    given = len(node.inputs) - len(captured_names(node))
    inputs = ["" if value is None else f"i{i}" for i, value in enumerate(node.inputs[:given])]
    outputs = ["" if value is None else f"o{i}" for i, value in enumerate(node.outputs)]
    proto: onnx.NodeProto = helper.make_node(op_type, inputs, outputs, domain=domain)
    declared = _declared_attributes(domain, op_type, opsets.get(domain, 1))
    for name, attr in node.attrs.items():
        if not name.endswith(CAPTURES):
            proto.attribute.append(_attribute(name, attr, declared.get(name)))
    return proto


def node_input_names(node: Node) -> tuple[str, ...]:
    """Return the name of each input in `single_node`, "" for an omitted input."""
    captured = captured_names(node)
    given = len(node.inputs) - len(captured)
    return (*("" if value is None else f"i{i}" for i, value in enumerate(node.inputs[:given])), *captured)


def _declared_attributes(domain: str, op_type: str, version: int) -> dict[str, Any]:
    """Return the attribute types declared by the schema of an operator; {} without a schema."""
    defs = require("onnx.defs", extra="onnx")
    try:
        schema = defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return {}
    return {name: attribute.type for name, attribute in schema.attributes.items()}


def _attribute(name: str, attr: Attr, declared: Any) -> onnx.AttributeProto:
    """Return the attribute; bytes become what the schema declares: tensor, graph, type, a list of these, or string."""
    package = require("onnx", extra="onnx")
    kinds, proto_type = package.defs.OpSchema.AttrType, package.AttributeProto
    content: Any = attr
    if isinstance(attr, bytes):
        message = {
            kinds.TENSOR: package.TensorProto,
            kinds.SPARSE_TENSOR: package.SparseTensorProto,
            kinds.TYPE_PROTO: package.TypeProto,
            kinds.GRAPH: package.GraphProto,
        }.get(declared)
        if message is not None:
            content = message.FromString(attr)
        elif declared not in (None, kinds.STRING):
            return _as_attribute_proto(proto_type.FromString(attr))
    kind = None
    if isinstance(attr, tuple) and not attr:
        kind = proto_type.INTS if declared is None else declared.value
    return _as_attribute_proto(package.helper.make_attribute(name, content, attr_type=kind))


def _as_attribute_proto(attribute: Any) -> onnx.AttributeProto:
    proto: onnx.AttributeProto = attribute
    return proto


NATIVE = frozenset("?bhilqBHILQefd")
"""Type characters of the NumPy arrays accepted by ONNX Runtime without conversion."""

NOTHING_PREPARED = frozenset(
    {
        *(UNARY + BINARY + VARIADIC + EXTREMES),
        *("Where", "Gather", "GatherElements", "GatherND", "Concat", "Transpose", "Conv", "MaxPool"),
        *("LayerNormalization", "BatchNormalization", "SimplifiedLayerNormalization", "com.microsoft.FusedConv"),
        *("com.microsoft.SkipLayerNormalization", "com.microsoft.BiasGelu", "com.microsoft.nchwc.Conv"),
    }
)
"""Operators with kernels without benefit from constants: the same bits in the same time. Every other operator
receives its constants, since the kernel may prepare them (MatMul, Gemm and LSTM rearrange their weights, and become
up to three times as fast) or require them. A convolution would only copy the constants."""

STRING = 8
Key = tuple[Any, ...]


@dataclass(frozen=True)
class SessionNode:
    """A node as seen by a session.

    kind       the key that decides whether ONNX Runtime has a kernel
    key        the key of nodes able to share a session: the kind, and the constants
    constants  the constants held by the session, by input name
    """

    node: Node
    kind: Key
    key: Key
    constants: Constants
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    open_extents: bool = False

    def listing(self, opsets: Mapping[str, int], *, constants: bool = True) -> Listing:
        """Return a listing of the node alone, operands named i0, i1, ... and o0, o1, ...

        Without `constants`, large constants become inputs.
        """
        held = {name: c for name, c in self.constants.items() if constants or is_inlined(c[0])}
        free = tuple((name, spec) for name, (spec, _) in self.constants.items() if name not in held)
        proto = single_node(self.node, opsets)
        operands = (*self.inputs, *free), self.outputs
        return Listing([proto], *operands, held, self.imports(opsets), self.open_extents)

    def imports(self, opsets: Mapping[str, int]) -> dict[str, int]:
        """Return the operator sets needed by the node: all sets if an attribute may be a graph."""
        domain, _ = domain_and_type(self.node.op)
        whole = any(isinstance(attr, bytes) for attr in self.node.attrs.values())
        return {**(opsets if whole else {}), "": opsets.get("", 1), domain: opsets.get(domain, 1)}


def session_node_of(node: Node, weights: Mapping[Value, Array], *, open_extents: bool = False) -> SessionNode | None:
    """Return the form of a node; None if a type is unknown, or accepted by ONNX Runtime only in its own memory.

    With `open_extents` the form is the same for all shapes of one rank.
    """
    constants = _session_constants(node, weights)
    inputs = _declarations(node, node_input_names(node), node.inputs, constants, open_extents)
    outputs = _declarations(node, node_output_names(node), node.outputs, {}, open_extents)
    if inputs is None or outputs is None:
        return None
    attrs = tuple(sorted(node.attrs.items(), key=lambda item: item[0]))
    types = tuple(value and _type(value, open_extents) for value in (*node.inputs, *node.outputs))
    small = tuple((name, array.tobytes()) for name, (spec, array) in constants.items() if is_inlined(spec))
    large = tuple((name, array.ctypes.data) for name, (spec, array) in constants.items() if not is_inlined(spec))
    kind = (node.op, attrs, len(node.inputs), types, captured_names(node), small)
    return SessionNode(node, kind, (kind, large), constants, inputs, outputs, open_extents)


def node_output_names(node: Node) -> tuple[str, ...]:
    """Return the name of each output in `single_node`, "" for an omitted output."""
    return tuple("" if value is None else f"o{i}" for i, value in enumerate(node.outputs))


def _type(value: Value, open_extents: bool) -> Any:
    if not isinstance(value.spec, TensorSpec):
        return (_with_open_extents(value.spec) if open_extents else value.spec).type
    return (value.spec.dtype, len(value.spec.shape)) if open_extents else value.spec


def _session_constants(node: Node, weights: Mapping[Value, Array]) -> Constants:
    """Return the constants held by the session."""
    if node.op.removeprefix(PREFIX) in NOTHING_PREPARED or captured_names(node):
        return {}
    shown: dict[str, tuple[TensorSpec, Array]] = {}
    for name, value in zip(node_input_names(node), node.inputs, strict=True):
        if value is not None and value in weights and isinstance(value.spec, TensorSpec):
            shown[name] = (value.spec, weights[value])
    return shown


def _declarations(
    node: Node, names: Sequence[str], values: Sequence[Value | None], held: Constants, open_extents: bool
) -> tuple[Any, ...] | None:
    """Return the declarations of all values not held by the session; None if a type is unknown."""
    declarations: list[Any] = []
    for name, value in zip(names, values, strict=True):
        if value is None or name in held:
            continue
        if isinstance(value.spec, Unplannable):
            declarations.append(value_info(name, _with_open_extents(value.spec) if open_extents else value.spec))
        elif not node.plannable and NUMPY[value.spec.dtype].char not in NATIVE:
            return None
        else:
            declarations.append((name, value.spec))
    return None if None in declarations else tuple(declarations)


def _with_open_extents(spec: Unplannable) -> Unplannable:
    """Return the type with open extents, of the same rank."""
    return replace(spec, dims=spec.dims and (None,) * len(spec.dims))


def value_info(name: str, spec: Unplannable) -> onnx.ValueInfoProto | None:
    """Return the declaration of a value with a type in text form, "f32[2,?]" or "seq(i64[...])"; None if unknown."""
    type = _type_proto(spec.type)
    return None if type is None else require("onnx.helper", extra="onnx").make_value_info(name, type)


def _type_proto(text: str) -> Any:
    helper = require("onnx.helper", extra="onnx")
    if text.startswith("seq(") and text.endswith(")"):
        inner = _type_proto(text[4:-1])
        return None if inner is None else helper.make_sequence_type_proto(inner)
    element, bracket, rest = text.partition("[")
    number = _element(element)
    if not bracket or not rest.endswith("]") or number is None:
        return None
    dims = rest[:-1]
    if dims == "...":
        return helper.make_tensor_type_proto(number, None)
    return helper.make_tensor_type_proto(number, [int(d) if d.isdigit() else None for d in dims.split(",") if dims])


def _element(text: str) -> int | None:
    if text == "str":
        return STRING
    try:
        dtype = DType.parse(text)
    except SubletError:
        return None
    return element_type(dtype) if NUMPY[dtype].char in NATIVE else None


@dataclass(frozen=True)
class SessionOperand:
    """An operand passed to a session at each run."""

    name: str
    value: Value
    operand: Operand

    @property
    def address(self) -> tuple[Typed, int]:
        """The name, spec and address of a planned operand."""
        assert isinstance(self.value.spec, TensorSpec)
        assert not isinstance(self.operand, UnplannedCell)
        return (self.name, self.value.spec), self.operand.ctypes.data

    @property
    def content(self) -> Any:
        """The current content of the operand."""
        return self.operand.content if isinstance(self.operand, UnplannedCell) else self.operand


SessionOperands = Sequence[SessionOperand]


def session_operands(
    names: Sequence[str], values: Sequence[Value | None], operands: Sequence[Operand | None], held: Mapping[str, Any]
) -> SessionOperands:
    """Return the operands present, without constants held by the session."""
    present: list[SessionOperand] = []
    for name, value, operand in zip(names, values, operands, strict=True):
        if value is not None and operand is not None and name not in held:
            present.append(SessionOperand(name, value, operand))
    return present


@dataclass(frozen=True)
class ArrayCall:
    """A call for a node with values outside the plan: ONNX Runtime allocates, planned results are copied."""

    session: ArraySession
    read: SessionOperands
    written: SessionOperands

    def __call__(self) -> None:
        for content, place in zip(self.session.run({p.name: p.content for p in self.read}), self.written, strict=True):
            store(content, place.operand, place.value, place.value.spec)

    def over_ranges(
        self, places: Mapping[str, PlaceNumbers], copied: Mapping[int, Sequence[PlaceNumbers]]
    ) -> BindAtPoint:
        """See `kernel.Ranged`."""
        return partial(ArrayCallAtPoint, self, places)


class ArrayCallAtPoint:
    """An `ArrayCall` with its planned operands at the shapes and addresses of a point."""

    def __init__(
        self,
        call: ArrayCall,
        places: Mapping[str, PlaceNumbers],
        shapes: Sequence[tuple[int, ...]],
        addresses: Sequence[int],
    ) -> None:
        self._call = call
        self._places = places
        self.move(shapes, addresses)

    def __call__(self) -> None:
        self._bound()

    def move(self, shapes: Sequence[tuple[int, ...]], addresses: Sequence[int]) -> None:
        """See `kernel.PointCall`."""
        read, written = (
            [self._operand_at(each, shapes, addresses) for each in operands]
            for operands in (self._call.read, self._call.written)
        )
        self._bound = ArrayCall(self._call.session, read, written)

    def _operand_at(
        self, each: SessionOperand, shapes: Sequence[tuple[int, ...]], addresses: Sequence[int]
    ) -> SessionOperand:
        """Return the operand with its array at the point; a cell stays."""
        if isinstance(each.operand, UnplannedCell):
            return each
        shape, address = self._places[each.value.name]
        return replace(each, operand=array_at(addresses[address], shapes[shape], each.operand.dtype))


# A listing of several nodes for one session: operands get names of the listing, and keep their addresses.


@dataclass
class JointListing:
    """A listing grown node by node. Every operand has a distinct name, unless nodes read the same value.

    members   the key of the listing among listings of the same nodes
    owners    the value of each operand
    operands  for each node the names of its inputs and outputs
    """

    opsets: Mapping[str, int]
    open_extents: bool = False
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
            self.members.append(("copy",) if self.open_extents else (spec, *names[0]))
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
        return Listing(self.protos, inputs, outputs, self.constants, self.imports, self.open_extents)

    def bind_session(self, session: Session) -> Call:
        """Return a call of a session over the listing."""
        return session.bind_addresses(
            list(self.inputs.values()), list(self.outputs.values()), self.owners, self.operands
        )


def are_disjoint(copies: ByteCopies) -> bool:
    """True if no copy reads bytes written by the copies: ONNX Runtime copies without checking for overlap."""
    return not any(np.may_share_memory(source, to) for source, to in copies.pairs)
