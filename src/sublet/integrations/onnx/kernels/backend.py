"""The ONNX Runtime backend: kernels of ONNX Runtime, run at the addresses of the plan.

Results equal ONNX Runtime's session over the same graph bit by bit: the same kernels run on the
same operands. Equality holds from an alignment of 64 bytes on; at other addresses, such as a row inside its whole,
some kernels vectorise other elements, with possible differences in the last bit.
Neighbouring calls are merged into one session, so that Python runs between them only for loops,
branches and nodes of other backends.
"""

from __future__ import annotations

import operator
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np

from sublet.base.errors import RunError
from sublet.base.optional_imports import require
from sublet.base.tensor import NUMPY, DType, TensorSpec, Unplannable
from sublet.integrations.onnx.dialect import PREFIX, always_written_outputs
from sublet.integrations.onnx.kernels.caches import cache_kernel
from sublet.integrations.onnx.kernels.session import ArraySession, Listing, Session, keep_open_in_child, kernels_of
from sublet.integrations.onnx.kernels.session_node import (
    CAPTURES,
    ArrayCall,
    JointListing,
    Key,
    SessionNode,
    SessionOperand,
    SessionOperands,
    are_disjoint,
    domain_and_type,
    node_input_names,
    node_output_names,
    session_node_of,
    session_operands,
    single_node,
    value_info,
)
from sublet.ir.graph import Node, Value
from sublet.ir.model import Model
from sublet.runtime.kernel import Array, Call, CallSequence, Kernel, Operand, UnplannedCell
from sublet.runtime.moves import ByteCopies

# Comparisons and logic of single elements without a session, at less cost: for conditions of loops.

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "And": operator.and_,
    "Equal": operator.eq,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Not": operator.not_,
    "Or": operator.or_,
    "Xor": operator.xor,
}
"""Operators with a single bool as result, the same in Python and in ONNX Runtime."""

EXACT = (np.bool_, np.int32, np.int64, np.float32, np.float64)
"""Element types with an exact equivalent in Python."""

MAX_NODES = 8
"""Most neighbouring scalar nodes run in Python; with more, a session costs less."""


def scalar_call(node: Node, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None]) -> Call | None:
    """Return a call computing the node in Python; None for other operators, or operands that are no scalars."""
    function = FUNCTIONS.get(node.op.removeprefix(PREFIX))
    operands = [
        operand
        for operand in (*inputs, *outputs)
        if isinstance(operand, np.ndarray) and operand.shape == () and operand.dtype.type in EXACT
    ]
    if function is None or len(operands) != len(inputs) + len(outputs):
        return None
    *read, out = operands
    if len(read) == 1:
        only = read[0].item

        def compute_one() -> None:
            out[()] = function(only())

        return compute_one
    left, right = (operand.item for operand in read)

    def compute() -> None:
        out[()] = function(left(), right())

    return compute


MOST_SESSIONS = 32
"""Most sessions kept by a node with types known only at run time: one per combination of shapes. Beyond the limit, the
least recently used session is closed, and reopened when its shapes recur."""

MOST_KINDS = 4096
"""Kinds of nodes (operator, attributes, types) to remember the kernel of. Beyond the limit, the oldest goes."""

OneSession = TypeVar("OneSession", Session, ArraySession)

RUN_FIRST = ("Shape", "Size")
"""Operators run by ONNX Runtime before all other ready nodes."""


@dataclass
class OnnxRuntime:
    """The backend: `opsets` gives the version of each operator set, `threads` the threads used, 0 for all cores.

    With `open_extents`, for models over ranges of dimensions, one session serves all shapes.
    """

    opsets: Mapping[str, int]
    threads: int = 0
    open_extents: bool = False
    name: str = "onnxruntime"
    _kinds: dict[Key, bool | None] = field(default_factory=dict, repr=False)
    _sessions: dict[tuple[str, ...], tuple[tuple[int, Key], Session | ArraySession]] = field(
        default_factory=dict, repr=False
    )

    @property
    def prepared_bytes(self) -> int:
        """The bytes of weights held by kernels as a rearranged copy."""
        return sum(session.prepared_bytes for _, session in self._sessions.values())

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return the kernel of an ONNX operator; None if ONNX Runtime has none for the types."""
        if not node.op.startswith(PREFIX):
            return cache_kernel(node)
        if _lacks_outputs(node):
            return None
        form = session_node_of(node, constants, open_extents=self.open_extents)
        if form is None:
            return _LateKernel(node, self.opsets, self.threads) if is_contributed(node) else None
        joinable = self._is_mergeable(form)
        return None if joinable is None else _OrtKernel(form, self, joinable)

    def _is_mergeable(self, form: SessionNode) -> bool | None:
        """True if the kernel may be part of a listing of several nodes; None without a kernel."""
        if form.kind not in self._kinds:
            try:
                ran = kernels_of(form.listing(self.opsets, constants=False))
                if ran is None and form.constants:
                    ran = kernels_of(form.listing(self.opsets))
            except Exception:  # an attribute not matching the declaration of the operator
                ran = None
            _, op_type = domain_and_type(form.node.op)
            plain = not any(name.endswith(CAPTURES) for name in form.node.attrs)
            alone = ran == (op_type,) and op_type not in RUN_FIRST
            self._kinds[form.kind] = None if ran is None else alone and plain and form.node.plannable
            if len(self._kinds) > MOST_KINDS:
                del self._kinds[next(iter(self._kinds))]
            return None if ran is None else alone and plain and form.node.plannable
        return self._kinds[form.kind]

    def session(self, names: tuple[str, ...], key: Key, open: Callable[[], OneSession]) -> OneSession:
        """Return the session over the nodes named `names`, reused if open with an equal `key`."""
        held, now = self._sessions.get(names), (os.getpid(), key)  # a fork loses the threads of a session
        if held is not None and held[0][0] != now[0]:
            keep_open_in_child(held[1])
        if held is None or held[0] != now:
            self._sessions.pop(names, None)
            held = self._sessions[names] = (now, open())
        return cast(OneSession, held[1])


def _lacks_outputs(node: Node) -> bool:
    """True if an output is omitted that ONNX Runtime's kernel writes nevertheless."""
    given, present = [value is not None for value in node.inputs], {i for i, v in enumerate(node.outputs) if v}
    return not always_written_outputs(*domain_and_type(node.op), given, len(node.outputs)) <= present


@dataclass(frozen=True)
class _OrtKernel:
    """The kernel of a node with types known before the run."""

    form: SessionNode
    backend: OnnxRuntime
    mergeable: bool
    scratch: int = 0

    @property
    def keeps(self) -> bool:
        """True with values outside the plan: results are then computed elsewhere and copied."""
        return not self.form.node.plannable

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        node = self.form.node
        read = session_operands(node_input_names(node), node.inputs, inputs, self.form.constants)
        written = session_operands(node_output_names(node), node.outputs, outputs, {})
        if not self.mergeable:
            return self.unmerged_call(read, written)
        scalar = None if self.backend.open_extents else scalar_call(node, inputs, outputs)
        return _MergeableCall(self, read, written, scalar)

    def unmerged_call(self, read: SessionOperands, written: SessionOperands) -> Call:
        """Return a call in a separate session; a mergeable kernel gets a single thread, the thread of its stream."""
        form, backend = self.form, self.backend
        threads = 1 if self.mergeable else backend.threads
        names, key, listing = (form.node.name,), form.key, form.listing(backend.opsets)
        if any(isinstance(entry.operand, UnplannedCell) for entry in (*read, *written)):
            key = (ArraySession, key)
            return ArrayCall(backend.session(names, key, lambda: ArraySession(listing, threads)), read, written)
        session = backend.session(names, key, lambda: Session(listing, threads))
        return session.bind_addresses(
            [entry.address for entry in read],
            [entry.address for entry in written],
            {entry.name: entry.value.name for entry in (*read, *written)},
        )


@dataclass(eq=False)
class _MergeableCall:
    """A call waiting to be merged with others; run alone, the call first opens a separate session.

    `scalar` computes the node without a session.
    """

    kernel: _OrtKernel
    read: SessionOperands
    written: SessionOperands
    scalar: Call | None = None
    _single: Call | None = None

    def __call__(self) -> None:
        if self._single is None:
            self._single = self.scalar or self.kernel.unmerged_call(self.read, self.written)
        self._single()

    @property
    def addresses(self) -> list[int]:
        """The addresses of the inputs, then of the outputs."""
        return [place.address[1] for place in (*self.read, *self.written)]

    def merge_following(self, following: Sequence[Call]) -> tuple[Call, int]:
        """Return one call for this call and as many of `following` as possible; and their number."""
        backend = self.kernel.backend
        joint, names = JointListing(backend.opsets, backend.open_extents), [self.kernel.form.node.name]
        joint.add(self.kernel.form, self.read, self.written)
        scalars = [self.scalar]
        for call in following:
            if isinstance(call, ByteCopies) and are_disjoint(call):
                joint.add_copies(call)
                names.append("")
                scalars.append(None)
            elif isinstance(call, _MergeableCall) and call.kernel.backend is backend:
                joint.add(call.kernel.form, call.read, call.written)
                names.append(call.kernel.form.node.name)
                scalars.append(call.scalar)
            else:
                break
        cheap = [scalar for scalar in scalars if scalar]
        if len(cheap) == len(names) <= MAX_NODES:
            return (_Scalars(cheap) if len(cheap) > 1 else cheap[0]), len(names) - 1
        key, listing = tuple(joint.members), joint.listing
        session = backend.session(tuple(names), key, lambda: Session(listing, backend.threads))
        return joint.bind_session(session), len(names) - 1


class _Scalars(CallSequence):
    """Several nodes on scalars, computed without a session."""

    __slots__ = ()

    def patch(self, number: int, call: Call) -> bool:
        """See `kernel.Patchable`."""
        if not isinstance(call, _MergeableCall) or call.scalar is None:
            return False
        self.calls[number] = call.scalar
        return True


def is_contributed(node: Node) -> bool:
    """True if only ONNX Runtime has a kernel for the operator, as for the com.microsoft domain."""
    return node.op.startswith(f"{PREFIX}com.microsoft") or node.op == f"{PREFIX}SimplifiedLayerNormalization"


@dataclass(frozen=True)
class _LateKernel:
    """The kernel of a node with types known only during the run; each run opens or reuses a session for its types."""

    node: Node
    opsets: Mapping[str, int]
    threads: int
    scratch: int = 0
    keeps: bool = True
    _sessions: OrderedDict[tuple[Any, ...], ArraySession] = field(default_factory=OrderedDict, repr=False)

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        read = session_operands(node_input_names(self.node), self.node.inputs, inputs, {})
        written = session_operands(node_output_names(self.node), self.node.outputs, outputs, {})

        def run() -> None:
            session = self._session(read)
            ArrayCall(session, read, written)()

        return run

    def _session(self, read: SessionOperands) -> ArraySession:
        """Return the session for the types of the current inputs."""
        specs = {place.value: _spec_of(place) for place in read}
        key = (os.getpid(), *specs.values())
        for old in [old for old in self._sessions if old[0] != key[0]]:
            keep_open_in_child(self._sessions.pop(old))
        if key not in self._sessions:
            inputs = tuple(value and replace(value, spec=specs[value]) for value in self.node.inputs)
            form = session_node_of(replace(self.node, inputs=inputs, outputs=()), {})
            assert form is not None
            named = zip(node_output_names(self.node), self.node.outputs, strict=True)
            results = [_output_info(name, value) for name, value in named if value]
            whole = single_node(self.node, self.opsets)
            listing = Listing([whole], form.inputs, results, {}, form.imports(self.opsets))
            self._sessions[key] = ArraySession(listing, self.threads)
            while len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(key)
        return self._sessions[key]


def _output_info(name: str, value: Value) -> Any:
    """Return the declaration of an output with a type possibly unknown."""
    known = value_info(name, value.spec) if isinstance(value.spec, Unplannable) else None
    return known or require("onnx.helper", extra="onnx").make_empty_tensor_value_info(name)


_DTYPES: dict[np.dtype[Any], DType] = {dtype: ours for ours, dtype in NUMPY.items()}


def _spec_of(place: SessionOperand) -> TensorSpec:
    content = np.asarray(place.content)
    if content.dtype not in _DTYPES:
        raise RunError(f"{place.value} is {content.dtype}, which ONNX Runtime does not accept here")
    return TensorSpec(_DTYPES[content.dtype], content.shape)


def backend_for(model: Model) -> OnnxRuntime:
    """Return the backend for the operator sets of a model."""
    return OnnxRuntime(model.opsets, open_extents=bool(model.ranges))
