"""The ONNX Runtime backend: its kernels, run at the addresses of the plan.

Results are bit for bit those of ONNX Runtime's own session over the same graph: the same kernels run on the
same operands. That is so from an alignment of 64 bytes on; where a tensor begins elsewhere, as a row in its whole may,
some kernels compute other elements one by one than in vectors, and the last bit of these may differ.
Calls that follow one another are joined into one session, so that Python is left between them only for loops,
branches and what other backends compute.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sublet.base.errors import RunError
from sublet.base.extras import require
from sublet.base.numpy_types import NUMPY
from sublet.base.tensor import DType, TensorSpec, Unplannable
from sublet.ir.graph import Node, Value
from sublet.ops.onnx import PREFIX
from sublet.ops.onnx_outputs import written_outputs
from sublet.runtime.backends.onnx_nodes import domain_and_type, input_names, single_node
from sublet.runtime.backends.onnxruntime.joint import Joint, apart
from sublet.runtime.backends.onnxruntime.node import (
    Form,
    Key,
    Place,
    Placed,
    declared,
    form_of,
    output_names,
    placed,
    through_arrays,
)
from sublet.runtime.backends.onnxruntime.scalars import MOST, scalar_call
from sublet.runtime.backends.onnxruntime.session import Listing, Session, kernels_of, leave_behind
from sublet.runtime.calls import InTurn
from sublet.runtime.copying import Copies
from sublet.runtime.kernel import Array, Call, Cell, Kernel, Operand

MOST_SESSIONS = 32
"""Sessions that one node keeps whose types are known only when it runs: one for each combination of shapes. Beyond
these the session used longest ago is closed, and opened again when its shapes come again."""

OUT_OF_TURN = ("Shape", "Size")
"""Operators that ONNX Runtime runs before others that are ready."""


@dataclass
class OnnxRuntime:
    """`opsets` tells the version of each operator set; `threads` how many share the work, 0 for all cores."""

    opsets: Mapping[str, int]
    threads: int = 0
    name: str = "onnxruntime"
    _kinds: dict[Key, bool | None] = field(default_factory=dict, repr=False)
    _sessions: dict[tuple[str, ...], tuple[tuple[int, Key], Session]] = field(default_factory=dict, repr=False)

    @property
    def prepared_bytes(self) -> int:
        """Bytes of the weights that kernels hold a rearranged copy of."""
        return sum(session.prepared_bytes for _, session in self._sessions.values())

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """The kernel of an ONNX operator; None where ONNX Runtime has none for these types."""
        if not node.op.startswith(PREFIX) or _lacks_outputs(node):
            return None
        form = form_of(node, constants)
        if form is None:
            return _LateKernel(node, self.opsets, self.threads) if contributed(node) else None
        joinable = self._joinable(form)
        return None if joinable is None else _OrtKernel(form, self, joinable)

    def _joinable(self, form: Form) -> bool | None:
        """Whether its kernel can stand in a listing of several; None when there is no kernel."""
        if form.kind not in self._kinds:
            try:
                ran = kernels_of(form.listing(self.opsets, constants=False))
                if ran is None and form.constants:
                    ran = kernels_of(form.listing(self.opsets))
            except Exception:  # an attribute that is not what the operator declares
                ran = None
            _, op_type = domain_and_type(form.node.op)
            plain = not any(isinstance(attr, bytes) for attr in form.node.attrs.values())
            alone = ran == (op_type,) and op_type not in OUT_OF_TURN
            self._kinds[form.kind] = None if ran is None else alone and plain and form.node.plannable
        return self._kinds[form.kind]

    def session(self, names: tuple[str, ...], key: Key, listing: Listing, threads: int) -> Session:
        """The session over the nodes called `names`; the one there is unless `key` differs from what it was."""
        held, now = self._sessions.get(names), (os.getpid(), key)  # the threads of a session stay behind in a fork
        if held is not None and held[0][0] != now[0]:
            leave_behind(held[1])
        if held is None or held[0] != now:
            self._sessions.pop(names, None)
            held = self._sessions[names] = (now, Session(listing, threads))
        return held[1]


def _lacks_outputs(node: Node) -> bool:
    """Whether an output is left out that ONNX Runtime's kernel writes all the same."""
    given, present = [value is not None for value in node.inputs], {i for i, v in enumerate(node.outputs) if v}
    return not written_outputs(*domain_and_type(node.op), given, len(node.outputs)) <= present


@dataclass(frozen=True)
class _OrtKernel:
    form: Form
    backend: OnnxRuntime
    joinable: bool
    scratch: int = 0

    @property
    def keeps(self) -> bool:
        """Where values lie outside the plan, results are computed elsewhere and copied."""
        return not self.form.node.plannable

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        node = self.form.node
        read = placed(input_names(node), node.inputs, inputs, self.form.constants)
        written = placed(output_names(node), node.outputs, outputs, {})
        if not self.joinable:
            return self.alone(read, written)
        return _JoinableCall(self, read, written, scalar_call(node, inputs, outputs))

    def alone(self, read: Placed, written: Placed) -> Call:
        """A call in a session of its own. A kernel that could be joined has a thread of its own then: its stream."""
        form, backend = self.form, self.backend
        threads = 1 if self.joinable else backend.threads
        session = backend.session((form.node.name,), form.key, form.listing(backend.opsets), threads)
        if any(isinstance(entry.operand, Cell) for entry in (*read, *written)):
            return through_arrays(session, read, written)
        return session.bound(
            [entry.address for entry in read],
            [entry.address for entry in written],
            {entry.name: entry.value.name for entry in (*read, *written)},
        )


@dataclass(eq=False)
class _JoinableCall:
    """A call that waits to be joined with others. Called by itself it opens its own session first.

    `scalar` computes the node without a session.
    """

    kernel: _OrtKernel
    read: Placed
    written: Placed
    scalar: Call | None = None
    _single: Call | None = None

    def __call__(self) -> None:
        if self._single is None:
            self._single = self.scalar or self.kernel.alone(self.read, self.written)
        self._single()

    @property
    def addresses(self) -> list[int]:
        """Of what it reads, then of what it writes."""
        return [place.address[1] for place in (*self.read, *self.written)]

    def joined(self, following: Sequence[Call]) -> tuple[Call, int]:
        """One call for this one and as many of the following as can be; and how many those are."""
        backend = self.kernel.backend
        joint, names = Joint(backend.opsets), [self.kernel.form.node.name]
        joint.add(self.kernel.form, self.read, self.written)
        scalars = [self.scalar]
        for call in following:
            if isinstance(call, Copies) and apart(call):
                joint.add_copies(call)
                names.append("")
                scalars.append(None)
            elif isinstance(call, _JoinableCall) and call.kernel.backend is backend:
                joint.add(call.kernel.form, call.read, call.written)
                names.append(call.kernel.form.node.name)
                scalars.append(call.scalar)
            else:
                break
        cheap = [scalar for scalar in scalars if scalar]
        if len(cheap) == len(names) <= MOST:
            return (_Scalars(cheap) if len(cheap) > 1 else cheap[0]), len(names) - 1
        session = backend.session(tuple(names), tuple(joint.members), joint.listing, backend.threads)
        return joint.bound(session), len(names) - 1


class _Scalars(InTurn):
    """Nodes of few elements, computed without a session."""

    __slots__ = ()

    def patch(self, number: int, call: Call) -> bool:
        """See `kernel.Patchable`."""
        if not isinstance(call, _JoinableCall) or call.scalar is None:
            return False
        self.calls[number] = call.scalar
        return True


def contributed(node: Node) -> bool:
    """Whether the operator is ONNX Runtime's own, so that nobody else has a kernel for it."""
    return node.op.startswith(f"{PREFIX}com.microsoft") or node.op == f"{PREFIX}SimplifiedLayerNormalization"


@dataclass(frozen=True)
class _LateKernel:
    """A node some of whose types are known only when it runs: a session is made then, for what is there."""

    node: Node
    opsets: Mapping[str, int]
    threads: int
    scratch: int = 0
    keeps: bool = True
    _sessions: OrderedDict[tuple[Any, ...], Session] = field(default_factory=OrderedDict, repr=False)

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        read = placed(input_names(self.node), self.node.inputs, inputs, {})
        written = placed(output_names(self.node), self.node.outputs, outputs, {})

        def run() -> None:
            session = self._session(read)
            through_arrays(session, read, written)()

        return run

    def _session(self, read: Placed) -> Session:
        specs = {place.value: _spec_of(place) for place in read}
        key = (os.getpid(), *specs.values())
        for old in [old for old in self._sessions if old[0] != key[0]]:
            leave_behind(self._sessions.pop(old))
        if key not in self._sessions:
            inputs = tuple(value and replace(value, spec=specs[value]) for value in self.node.inputs)
            form = form_of(replace(self.node, inputs=inputs, outputs=()), {})
            assert form is not None
            named = zip(output_names(self.node), self.node.outputs, strict=True)
            results = [_result(name, value) for name, value in named if value]
            whole = single_node(self.node, self.opsets)
            listing = Listing([whole], form.inputs, results, {}, form.imports(self.opsets))
            self._sessions[key] = Session(listing, self.threads)
            while len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(key)
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
