"""Sessions of ONNX Runtime over addresses: nodes without edges, connected only through planned memory.

A session holds any number of nodes, and no edges: every operand is an input or an output of the session,
bound to its bytes. ONNX Runtime then allocates no tensor, moves none and merges no nodes: ONNX Runtime becomes an
interpreter of a list of kernels. The list runs in order, since all nodes are ready from the start (Shape and Size
would run before the others; `mergeable` nodes are neither); see `engine` for the order of the file.
"""

from __future__ import annotations

import ctypes
import mmap
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.base.optional_imports import require
from sublet.base.tensor import NUMPY, DType, TensorSpec
from sublet.integrations.onnx.kernels.engine import (
    IR_VERSION,
    Binding,
    Constant,
    Numbered,
    OpenSession,
    open_session,
    python_session,
)
from sublet.plan import Stride
from sublet.runtime.kernel import Array, BindAtPoint, Call, PlaceNumbers

if TYPE_CHECKING:
    import onnx

INLINE_BYTES = 1024
"""Largest constant, in bytes, written into the model of the node, where shape inference can read the constant."""

Typed = tuple[str, TensorSpec]
"""Name and spec of an operand."""

Constants = Mapping[str, tuple[TensorSpec, Array]]
"""Constants by the name of the input they are for."""

Declared = Sequence["Typed | onnx.ValueInfoProto"]


@lru_cache(maxsize=256)
def element_type(dtype: DType) -> int:
    """Return ONNX's number of a data type."""
    return int(require("onnx.helper", extra="onnx").np_dtype_to_tensor_dtype(NUMPY[dtype]))


def is_inlined(spec: TensorSpec) -> bool:
    """True if a constant of the given spec is written into the model."""
    return spec.nbytes <= INLINE_BYTES or spec.dtype.bits < 8


@dataclass(frozen=True)
class Listing:
    """The content of a session: nodes, operands, constants, and versions of operator sets.

    With `open_extents` the session serves every shape: operands are declared by type and rank alone.
    """

    nodes: Sequence[onnx.NodeProto]
    inputs: Declared
    outputs: Declared
    constants: Constants
    opsets: Mapping[str, int]
    open_extents: bool = False

    def model(self, last_first: bool) -> bytes:
        """Return the model file, its nodes in reverse where the last node runs first.

        Small constants are written into the model, large constants are only declared.
        """
        helper = require("onnx.helper", extra="onnx")
        graph = helper.make_graph(
            self.nodes[::-1] if last_first else self.nodes,
            "nodes",
            [_value_info(value, self.open_extents) for value in self.inputs],
            [_value_info(value, self.open_extents) for value in self.outputs],
            [_constant(name, spec, array) for name, (spec, array) in self.constants.items()],
        )
        imports = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
        model: onnx.ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
        return bytes(model.SerializeToString())

    @property
    def large_constants(self) -> list[Constant]:
        """The constants that are no part of the model file."""
        held = self.constants.items()
        return [(name, element_type(spec.dtype), array) for name, (spec, array) in held if not is_inlined(spec)]


def _value_info(value: Any, open_extents: bool) -> Any:
    """Return the declaration of an operand given as name and spec, or already as a declaration."""
    if not isinstance(value, tuple):
        return value
    name, spec = value
    shape = [None] * len(spec.shape) if open_extents else spec.shape
    return require("onnx.helper", extra="onnx").make_tensor_value_info(name, element_type(spec.dtype), shape)


def _constant(name: str, spec: TensorSpec, array: Array) -> onnx.TensorProto:
    """Return a constant as a TensorProto; large constants refer to external memory."""
    make = require("onnx", extra="onnx").TensorProto
    tensor: onnx.TensorProto = make(name=name, data_type=element_type(spec.dtype), dims=spec.shape)
    if is_inlined(spec):
        tensor.raw_data = array.tobytes()
    else:
        tensor.data_location = tensor.EXTERNAL
        for key, content in (("location", "memory"), ("offset", "0"), ("length", str(spec.nbytes))):
            tensor.external_data.add(key=key, value=content)
    return tensor


def kernels_of(listing: Listing) -> tuple[str, ...] | None:
    """Return the operators run by ONNX Runtime for the listing; None if a kernel is missing.

    The result differs from the listed operators where ONNX Runtime expands a function or converts types first.
    """
    load = require("onnx", extra="onnx").load
    with tempfile.TemporaryDirectory(prefix="sublet-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "kernels.onnx"
        try:
            open_session(listing.model, listing.large_constants, 1, str(path))
            optimized = load(path, load_external_data=False)
        except Exception:  # for any error: another backend may have a kernel
            return None
    return tuple(node.op_type for node in optimized.graph.node)


def _unload(array: Array) -> None:
    """Drop the pages of an array mapped from a file; the next read loads them again."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    begin = array.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    first, end = -(-begin // mmap.PAGESIZE), (begin + array.nbytes) // mmap.PAGESIZE
    if first < end:
        base.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (end - first) * mmap.PAGESIZE)


class _BoundRun:
    """A run of a session with its operands bound to addresses.

    `places` lists name, spec and address of the operands; `owners` and `operands` are as in `Session.bind_addresses`.
    """

    __slots__ = ("_binding", "_inputs", "_operands", "_owners", "_places", "_session")

    def __init__(
        self,
        session: OpenSession,
        inputs: Sequence[tuple[Typed, int]],
        outputs: Sequence[tuple[Typed, int]],
        owners: Mapping[str, str],
        operands: Sequence[Sequence[str]],
    ) -> None:
        self._session = session
        self._inputs = len(inputs)
        self._places = [*inputs, *outputs]
        self._owners = owners
        self._operands = operands
        numbered = [(name, element_type(spec.dtype), i, i) for i, ((name, spec), _) in enumerate(self._places)]
        shapes = [spec.shape for (_, spec), _ in self._places]
        addresses = [address for _, address in self._places]
        self._binding: Binding = session.binder(numbered, self._inputs)(shapes, addresses)

    def __call__(self) -> None:
        self._binding()

    def patch(self, number: int, call: Call) -> bool:
        """See `kernel.Patchable`; `call.addresses` lists the new addresses of the operands."""
        addresses = getattr(call, "addresses", None)
        if addresses is None or number >= len(self._operands):
            return False
        moved = dict(zip(self._operands[number], addresses, strict=True))
        for i, ((name, spec), address) in enumerate(self._places):
            if moved.get(name, address) != address:
                self._binding.bind(i, spec.shape, moved[name])
                self._places[i] = ((name, spec), moved[name])
        return True

    def over_ranges(
        self,
        places: Mapping[str, PlaceNumbers],
        copied: Mapping[int, Sequence[PlaceNumbers]],
    ) -> BindAtPoint:
        """See `kernel.Ranged`."""
        of_copies: dict[str, PlaceNumbers] = {}
        for i, found in copied.items():
            of_copies.update(zip(self._operands[i], found, strict=True))
        numbered: list[Numbered] = [
            (name, element_type(spec.dtype), *(of_copies[name] if name in of_copies else places[self._owners[name]]))
            for (name, spec), _ in self._places
        ]
        return self._session.binder(numbered, self._inputs)

    def follow_iterations(self, strides: Mapping[str, tuple[Stride, ...]], current: Mapping[str, int]) -> Call:
        """Return a call that first binds the moving operands, see `kernel.Relocatable`."""
        moves = []
        for i, ((name, spec), address) in enumerate(self._places):
            for stride in strides.get(self._owners.get(name, ""), ())[-1:]:
                around = strides[self._owners[name]][:-1]
                moves.append((i, spec.shape, address, stride.loop, stride.step, around))
        run, bind = self._binding, self._binding.bind

        def run_there() -> None:
            for number, shape, address, loop, step, around in moves:
                for outer in around:
                    address += current[outer.loop] * outer.step
                bind(number, shape, address + current[loop] * step)
            run()

        return run_there


def keep_open_in_child(session: Session | ArraySession) -> None:
    """Keep a session of the parent of a fork open forever: closing would wait for threads only the parent has."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


class _Prepared:
    """A session with large constants."""

    _constants: Sequence[Constant]

    @property
    def prepared_bytes(self) -> int:
        """The bytes of the large constants, of which kernels may hold a second, rearranged copy."""
        return sum(array.nbytes for _, _, array in self._constants)


class Session(_Prepared):
    """An open session over a listing, for operands at addresses."""

    def __init__(self, listing: Listing, threads: int) -> None:
        """Open the session; `threads` threads share the work of a kernel, 0 for the default of ONNX Runtime."""
        self._constants = listing.large_constants  # read in place
        self._session = open_session(listing.model, self._constants, threads)
        for _, _, array in self._constants:
            _unload(array)

    def bind_addresses(
        self,
        inputs: Sequence[tuple[Typed, int]],
        outputs: Sequence[tuple[Typed, int]],
        owners: Mapping[str, str] = MappingProxyType({}),
        operands: Sequence[Sequence[str]] = (),
    ) -> Call:
        """Return a call that runs with every operand at its address.

        `owners` maps operands to their values; `operands` lists the operand names of each node.
        """
        return _BoundRun(self._session, inputs, outputs, owners, operands)


class ArraySession(_Prepared):
    """An open session over a listing, for arrays: ONNX Runtime allocates the outputs."""

    def __init__(self, listing: Listing, threads: int) -> None:
        """Open the session, with `threads` as for `Session`."""
        self._constants = listing.large_constants
        self._session = python_session(listing.model(False), self._constants, threads)

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the outputs."""
        return list(self._session.run(None, dict(feeds)))
