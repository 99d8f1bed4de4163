"""ONNX Runtime sessions over addresses: nodes without edges, connected only through planned memory.

A session holds any number of nodes, and no edges: every operand is an input or an output of the session,
bound to its bytes. ONNX Runtime then allocates no tensor, moves none and merges no nodes: ONNX Runtime becomes an
interpreter of a list of kernels. The list runs in order, since the mode PRIORITY_BASED runs the first node in the
file among all ready nodes, and all nodes are ready (Shape and Size would run before the others; `mergeable` nodes
are neither).
"""

from __future__ import annotations

import ctypes
import mmap
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.base.optional_imports import require
from sublet.base.tensor import NUMPY, DType, TensorSpec
from sublet.plan import Stride
from sublet.runtime.kernel import Array, BindAtPoint, Call, PlaceNumbers

if TYPE_CHECKING:
    import onnx

INLINE_BYTES = 1024
"""Largest constant, in bytes, written into the model of the node, where shape inference can read the constant."""

IR_VERSION = 10
"""Version of the ONNX file format written: no feature of a newer version is needed."""

Typed = tuple[str, TensorSpec]
"""Name and spec of an operand."""

RangedOperand = tuple[str, int, int, int]
"""Name, ONNX's number of the element type, and the numbers of shape and address of an operand."""

Constants = Mapping[str, tuple[TensorSpec, Array]]
"""Constants by the name of the input they are for."""

Bind = Callable[..., None]

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

    def model(self) -> onnx.ModelProto:
        """Return the model. Small constants are written into the model, large constants are only declared."""
        helper = require("onnx.helper", extra="onnx")
        graph = helper.make_graph(
            self.nodes,
            "nodes",
            [_value_info(value, self.open_extents) for value in self.inputs],
            [_value_info(value, self.open_extents) for value in self.outputs],
            [_constant(name, spec, array) for name, (spec, array) in self.constants.items()],
        )
        imports = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
        model: onnx.ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
        return model


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


def _options(threads: int) -> Any:
    """Return options for bare kernels: no optimisation, no memory planning, no memory kept between runs."""
    ort = require("onnxruntime", extra="onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = False
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return options


def _open_session(listing: Listing, options: Any) -> Any:
    """Open a session that shares large constants without a copy. Raises the errors of ONNX Runtime."""
    ort = require("onnxruntime", extra="onnxruntime")
    large = {name: held for name, held in listing.constants.items() if not is_inlined(held[0])}
    if large:
        make = ort.OrtValue.ortvalue_from_numpy_with_onnx_type
        values = [make(array, element_type(spec.dtype)) for spec, array in large.values()]
        options.add_external_initializers(list(large), values)
    return ort.InferenceSession(listing.model().SerializeToString(), options, providers=["CPUExecutionProvider"])


def kernels_of(listing: Listing) -> tuple[str, ...] | None:
    """Return the operators run by ONNX Runtime for the listing; None if a kernel is missing.

    The result differs from the listed operators where ONNX Runtime expands a function or converts types first.
    """
    load = require("onnx", extra="onnx").load
    with tempfile.TemporaryDirectory(prefix="sublet-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "kernels.onnx"
        options = _options(1)
        options.optimized_model_filepath = str(path)
        try:
            _open_session(listing, options)
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
    """A run of a session with its operands bound to addresses."""

    __slots__ = ("_operands", "_owners", "_places", "_run", "_session")

    def __init__(
        self,
        session: Session,
        run: Call,
        places: Sequence[tuple[Bind, Typed, int]],
        owners: Mapping[str, str],
        operands: Sequence[Sequence[str]],
    ) -> None:
        self._session = session
        self._run = run
        self._places = list(places)
        self._owners = owners
        self._operands = operands

    def __call__(self) -> None:
        self._run()

    def patch(self, number: int, call: Call) -> bool:
        """See `kernel.Patchable`; `call.addresses` lists the new addresses of the operands."""
        addresses = getattr(call, "addresses", None)
        if addresses is None or number >= len(self._operands):
            return False
        moved = dict(zip(self._operands[number], addresses, strict=True))
        for i, (bind, (name, spec), address) in enumerate(self._places):
            if moved.get(name, address) != address:
                bind(name, "cpu", 0, element_type(spec.dtype), spec.shape, moved[name])
                self._places[i] = (bind, (name, spec), moved[name])
        return True

    def over_ranges(
        self, places: Mapping[str, PlaceNumbers], copied: Mapping[int, Sequence[PlaceNumbers]]
    ) -> BindAtPoint:
        """See `kernel.Ranged`."""
        moved: dict[str, PlaceNumbers] = {}
        for i, found in copied.items():
            moved.update(zip(self._operands[i], found, strict=True))
        listed = [
            (name, element_type(spec.dtype), *(moved[name] if name in moved else places[self._owners[name]]))
            for _, (name, spec), _ in self._places
        ]
        inputs = sum(bind.__name__ == "bind_input" for bind, _, _ in self._places)
        return self._session.over_ranges(listed[:inputs], listed[inputs:])

    def follow_iterations(self, strides: Mapping[str, tuple[Stride, ...]], current: Mapping[str, int]) -> Call:
        """Return a call that first binds the moving operands, see `kernel.Relocatable`."""
        moves = []
        for bind, (name, spec), address in self._places:
            for stride in strides.get(self._owners.get(name, ""), ())[-1:]:
                around = strides[self._owners[name]][:-1]
                bare = _address_binder(bind, name, element_type(spec.dtype), spec.shape)
                moves.append((bare, address, stride.loop, stride.step, around))
        run = self._run

        def run_there() -> None:
            for bind, address, loop, step, around in moves:
                for outer in around:
                    address += current[outer.loop] * outer.step
                bind(address + current[loop] * step)
            run()

        return run_there


@lru_cache(maxsize=1)
def _cpu_device() -> Any:
    """Return ONNX Runtime's record of the CPU."""
    return require("onnxruntime", extra="onnxruntime").OrtDevice.make("cpu", 0)._get_c_device()


def _address_binder(bind: Bind, name: str, kind: int, shape: tuple[int, ...]) -> Callable[[int], None]:
    """Return a function that binds an operand to an address, without the overhead of the public method if possible."""
    try:
        device = _cpu_device()
        method = getattr(bind.__self__._iobinding, bind.__name__)  # type: ignore[attr-defined]
    except AttributeError:
        return partial(bind, name, "cpu", 0, kind, shape)
    return partial(method, name, device, kind, shape)


def keep_open_in_child(session: Session) -> None:
    """Keep a session of the parent of a fork open forever: closing would wait for threads only the parent has."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


class Session:
    """An open session over a listing."""

    def __init__(self, listing: Listing, threads: int) -> None:
        """Open the session; `threads` threads share the work of a kernel, 0 for the default of ONNX Runtime."""
        self._constants = dict(listing.constants)
        self._session = _open_session(listing, _options(threads))
        for spec, array in self._constants.values():
            if not is_inlined(spec):
                _unload(array)

    @property
    def prepared_bytes(self) -> int:
        """The bytes of the large constants, of which kernels may hold a second, rearranged copy."""
        return sum(spec.nbytes for spec, _ in self._constants.values() if not is_inlined(spec))

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
        binding = self._session.io_binding()
        places = [(binding.bind_input, typed, address) for typed, address in inputs]
        places += [(binding.bind_output, typed, address) for typed, address in outputs]
        for bind, (name, spec), address in places:
            bind(name, "cpu", 0, element_type(spec.dtype), spec.shape, address)
        return _BoundRun(self, self._run(binding), places, owners, operands)

    def over_ranges(self, inputs: Sequence[RangedOperand], outputs: Sequence[RangedOperand]) -> BindAtPoint:
        """Return the function that binds all operands to the shapes and addresses of a point."""
        make, device, run = self._session.io_binding, _cpu_device(), self._run

        def bind(shapes: Sequence[tuple[int, ...]], addresses: Sequence[int]) -> Call:
            binding = make()
            bind_input, bind_output = binding._iobinding.bind_input, binding._iobinding.bind_output
            for name, kind, shape, address in inputs:
                bind_input(name, device, kind, shapes[shape], addresses[address])
            for name, kind, shape, address in outputs:
                bind_output(name, device, kind, shapes[shape], addresses[address])
            return run(binding)

        return bind

    def _run(self, binding: Any) -> Call:
        # The public method checks at each call for devices other than the CPU, at a higher cost than a small node.
        direct = getattr(getattr(self._session, "_sess", None), "run_with_iobinding", None)
        bare = getattr(binding, "_iobinding", None)
        if direct is None or bare is None:
            return partial(self._session.run_with_iobinding, binding)
        return partial(direct, bare, None)

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the outputs, allocated by ONNX Runtime."""
        return list(self._session.run(None, dict(feeds)))
