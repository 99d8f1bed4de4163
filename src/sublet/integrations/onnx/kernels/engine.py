"""The C library of ONNX Runtime, and its Python package where the library is missing: two ways to open a session.

Through the C library an operand is bound in a third of the time, a run enters no Python, and sessions share one pool
of threads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sublet.base.errors import SubletError
from sublet.base.optional_imports import require
from sublet.integrations.onnx.kernels import _sessions
from sublet.runtime.kernel import Array

Numbered = tuple[str, int, int, int]
"""An operand: name, ONNX's number of the element type, and the numbers of shape and address in lists of both."""

Constant = tuple[str, int, Array]
"""A large constant: name, ONNX's number of the element type, and content. The session reads the memory in place."""

BuildModel = Callable[[bool], bytes]
"""(whether the last node of the file runs first) -> the model file of a session."""

THREADS = "SUBLET_THREADS"
"""The environment variable with the number of threads that share the work of a kernel."""

MOST_THREADS = 1024
"""The largest number of threads taken from the variable."""

IR_VERSION = 10
"""Version of the ONNX file format written: no feature of a newer version is needed."""


class Binding(Protocol):
    """The operands of a session at their addresses; a call runs the session."""

    def bind(self, number: int, shape: tuple[int, ...], address: int) -> None:
        """Bind an operand to another address."""

    def move(self, shapes: list[tuple[int, ...]], addresses: list[int]) -> None:
        """Bind the operands again of which the lists have another shape or address."""

    def __call__(self) -> None:
        """Run all nodes. Raises RuntimeError, or an error of ONNX Runtime, for a failed kernel."""


Bind = Callable[[list[tuple[int, ...]], list[int]], Binding]
"""(shapes, addresses) -> the operands of a session, bound to the shapes and addresses with their numbers."""


class OpenSession(Protocol):
    """A session opened in either way."""

    def binder(self, operands: Sequence[Numbered], inputs: int) -> Bind:
        """Return the function that binds all operands, of which the first `inputs` are inputs."""


def open_session(build: BuildModel, constants: Sequence[Constant], threads: int, optimized: str = "") -> OpenSession:
    """Open a session over bare kernels; `threads` threads share the work of a kernel, 0 for the shared pool.

    `optimized` is the path of a file to write the model to, with the nodes that run. Raises the errors of ONNX Runtime.
    """
    found, wants_pool = c_library(), threads == 0
    threads = threads or pool_threads()  # a session without the pool has threads of its own
    if found is None:
        return _PythonSession(build(False), constants, threads, optimized)
    operands = [(name, kind, array.shape, array.ctypes.data) for name, kind, array in constants]
    shared = wants_pool and found.process == os.getpid()
    session = _sessions.Session(found.library, build(True), operands, threads, shared, optimized)
    return _CSession(session, [array for _, _, array in constants])


def pool_threads() -> int:
    """Return the number of threads of the shared pool: SUBLET_THREADS, or 0 for all cores.

    The variable counts when the process opens the first kernel, see `set_threads`. Raises SubletError for a text
    without meaning.
    """
    return _thread_count(os.environ.get(THREADS) or "0")


def _thread_count(text: str) -> int:
    """Return a number of threads from its text. Raises SubletError for a text without meaning."""
    if not (text.isascii() and text.isdigit() and int(text) <= MOST_THREADS):
        raise SubletError(f"{THREADS}={text}: expected a number of threads up to {MOST_THREADS}, or 0 for all cores")
    return int(text)


def set_threads(count: int) -> None:
    """Set the number of threads of the pool that all kernels of ONNX Runtime share; 0 for all cores.

    The pool opens with the first kernel of the process, so call this function before the first `compile`. Raises
    SubletError for a number out of range, and for an open pool with another number.
    """
    wanted = _thread_count(str(count))
    opened = pool_threads() if c_library.cache_info().currsize else wanted
    if opened != wanted:
        raise SubletError(f"the pool of this process is open with {opened} threads: set {count} before the first model")
    os.environ[THREADS] = str(wanted)


@dataclass(frozen=True)
class CLibrary:
    """The C library of ONNX Runtime, opened by the process with the number `process`.

    The child of a fork lacks the threads of the shared pool. The process is 0 if another package opened the same
    library before, without a shared pool.
    """

    library: _sessions.Library
    process: int


@lru_cache(maxsize=1)
def c_library() -> CLibrary | None:
    """Return the C library of the installed ONNX Runtime; None without one, or with another order of nodes."""
    package, threads = find_spec("onnxruntime"), pool_threads()
    for folder in (package and package.submodule_search_locations) or ():
        for path in sorted(Path(folder, "capi").glob("libonnxruntime.so*")):
            for shared_pool in (True, False):
                try:
                    entry = ctypes.cast(ctypes.CDLL(str(path)).OrtGetApiBase, ctypes.c_void_p).value
                    library = _sessions.Library(entry or 0, threads)
                    last_first = _runs_last_first(library, shared_pool)
                except (OSError, AttributeError, RuntimeError):  # not the library, without functions, or without a pool
                    continue
                if last_first:
                    return CLibrary(library, os.getpid() if shared_pool else 0)
    return None


CHAIN = 64
"""Nodes in the test of the order: each adds 1 to the result of the node before, so every other order gives less."""


def _runs_last_first(library: _sessions.Library, shared_pool: bool) -> bool:
    """True if nodes without edges run from the last node of the file to the first.

    The order of a sequential run follows from the graph, and is not documented: the test runs a chain of nodes that
    are connected through memory alone.
    """
    helper = require("onnx.helper", extra="onnx")
    names = [(f"r{i}", f"w{i}") for i in range(CHAIN)]
    nodes = [helper.make_node("Add", [read, "one"], [written]) for read, written in reversed(names)]
    typed = [[helper.make_tensor_value_info(name, 1, [1]) for name in each] for each in zip(*names, strict=True)]
    graph = helper.make_graph(nodes, "chain", [*typed[0], helper.make_tensor_value_info("one", 1, [1])], typed[1])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=IR_VERSION)
    session = _sessions.Session(library, model.SerializeToString(), [], 1, shared_pool, "")
    memory = np.zeros(CHAIN + 2, np.float32)
    memory[-1] = 1
    operands = [(read, 1, 0, i) for i, (read, _) in enumerate(names)]
    operands += [("one", 1, 0, CHAIN + 1), *((written, 1, 0, i + 1) for i, (_, written) in enumerate(names))]
    table = _sessions.Table(session, operands, CHAIN + 1)
    _sessions.Binding(table, [(1,)], [memory[i:].ctypes.data for i in range(CHAIN + 2)])()
    return bool(memory[CHAIN] == CHAIN)


class _CSession:
    """A session of the C library; `constants` are the arrays that the session reads in place."""

    def __init__(self, session: _sessions.Session, constants: Sequence[Array]) -> None:
        self._session, self._constants = session, constants

    def binder(self, operands: Sequence[Numbered], inputs: int) -> Bind:
        """See `OpenSession`."""
        return partial(self._bind, _sessions.Table(self._session, operands, inputs))

    def _bind(self, table: _sessions.Table, shapes: list[tuple[int, ...]], addresses: list[int]) -> Binding:
        return _sessions.Binding(table, shapes, addresses)


def _bare_options(threads: int) -> Any:
    """Return options of the Python package for bare kernels: no optimisation, no planning, no memory kept.

    PRIORITY_BASED runs the first node in the file among all ready nodes, and all nodes are ready.
    """
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


def python_session(model: bytes, constants: Sequence[Constant], threads: int, optimized: str = "") -> Any:
    """Return a session of the Python package."""
    ort = require("onnxruntime", extra="onnxruntime")
    options = _bare_options(threads)
    if optimized:
        options.optimized_model_filepath = optimized
    if constants:
        make = ort.OrtValue.ortvalue_from_numpy_with_onnx_type
        names = [name for name, _, _ in constants]
        options.add_external_initializers(names, [make(array, kind) for _, kind, array in constants])
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class _PythonSession:
    """A session of the Python package."""

    def __init__(self, model: bytes, constants: Sequence[Constant], threads: int, optimized: str) -> None:
        self.session = python_session(model, constants, threads, optimized)

    def binder(self, operands: Sequence[Numbered], inputs: int) -> Bind:
        """See `OpenSession`."""
        return partial(_PythonBinding, self.session, operands, inputs)


class _PythonBinding:
    """Bound operands of a session of the Python package."""

    def __init__(
        self,
        session: Any,
        operands: Sequence[Numbered],
        inputs: int,
        shapes: list[tuple[int, ...]],
        addresses: list[int],
    ) -> None:
        self._session, self._operands, self._inputs = session, operands, inputs
        self._binding = session.io_binding()
        self._bound: list[Any] = [None] * len(operands)
        self.move(shapes, addresses)

    def bind(self, number: int, shape: tuple[int, ...], address: int) -> None:
        """See `Binding`."""
        name, kind, _, _ = self._operands[number]
        bind = self._binding.bind_input if number < self._inputs else self._binding.bind_output
        bind(name, "cpu", 0, kind, shape, address)
        self._bound[number] = shape, address

    def move(self, shapes: list[tuple[int, ...]], addresses: list[int]) -> None:
        """See `Binding`."""
        for number, (_, _, shape, address) in enumerate(self._operands):
            if self._bound[number] != (shapes[shape], addresses[address]):
                self.bind(number, shapes[shape], addresses[address])

    def __call__(self) -> None:
        """See `Binding`."""
        self._session.run_with_iobinding(self._binding)
