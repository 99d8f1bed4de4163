"""Autotuning of backends [NNC: ccv_nnc_cmd_autotune]: the fastest backend on this machine for each node.

Nodes with equal op, attributes and specs form one question. The tuner times each candidate on scratch arrays,
and caches the answer on disk, keyed by machine, versions and question.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from sublet.base.arrays import array_over
from sublet.base.cache import add_entry, find_entry, remove_entry
from sublet.base.optional_imports import version_of
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.nn.command import PREFIX as NN
from sublet.runtime.kernel import Array, Backend, Call, Mergeable
from sublet.runtime.memory import aligned_bytes
from sublet.runtime.moves import byte_copies

CACHE, CHOICE = "tuned", "choice.json"
FORMAT = "2"
REFERENCE = "reference"
"""Name of the reference backend: always slower for ONNX operators; for small commands NumPy may beat PyTorch."""
WORKSPACE_BYTES = 256 << 20
"""Most bytes of operands and scratch for timing one question; larger nodes are not timed."""

ROUNDS = 5
ROUND_SECONDS = 2e-3
ENOUGH_SECONDS = 0.1
"""Seconds after which the rounds of timing one call end, however few."""
CHAIN = 8
"""Calls merged to time one call among its neighbours."""

PACKAGES = ("sublet", "numpy", "onnx", "onnxruntime", "torch")


@dataclass(frozen=True)
class Tuner:
    """Chooses backends for one model.

    backends   the candidates, in order of preference; the reference only for commands of the nn dialect
    opsets     the versions of the operator sets, part of the meaning of an op
    workspace  the bytes available for timing; a question needing more is skipped
    """

    backends: Sequence[Backend]
    opsets: Mapping[str, int]
    workspace: int = WORKSPACE_BYTES

    def choices(self, graph: Graph, constants: Mapping[Value, Array]) -> dict[str, str]:
        """Return the name of the fastest backend by node name, for all nodes with several backends."""
        answers: dict[str, str] = {}
        chosen: dict[str, str] = {}
        for node in graph.walk():
            if not _is_tunable(node):
                continue
            question = self._question(node, constants)
            if question not in answers:
                answers[question] = self._answer(node, constants, question)
            if answers[question]:
                chosen[node.name] = answers[question]
        return chosen

    def seconds(self, graph: Graph, constants: Mapping[Value, Array]) -> dict[str, float]:
        """Return the seconds of one run of each root-level node, by name, with the first backend with a kernel.

        Loops, branches, plain byte copies and nodes larger than the workspace are left out.
        """
        answers: dict[str, float | None] = {}
        seconds_of: dict[str, float] = {}
        for node in graph.nodes:
            if not _is_tunable(node):
                continue
            question = f"seconds of {self._question(node, constants)}"
            if question not in answers:
                answers[question] = self._seconds(node, constants, question)
            seconds = answers[question]
            if seconds is not None:
                seconds_of[node.name] = seconds
        return seconds_of

    def _seconds(self, node: Node, constants: Mapping[Value, Array], question: str) -> float | None:
        """Return the seconds of one run of the node; None if timing is not possible."""
        left = self._workspace_left(node)
        if left < 0:
            return None
        key = sha256(question.encode()).hexdigest()
        cached = _cached_answer(key, "seconds")
        if isinstance(cached, float):
            return cached
        first = next(
            (b for b in self.backends if (kernel := b.kernel(node, constants)) and kernel.scratch <= left), None
        )
        seconds = time_backends(node, [first], constants).get(first.name) if first is not None else None
        if seconds is not None:
            _save_answer(key, {"seconds": seconds, "question": question})
        return seconds

    def _workspace_left(self, node: Node) -> int:
        """Return the bytes of the workspace left beside the operands of the node."""
        return self.workspace - sum(value.nbytes for value in (*node.uses, *node.defs))

    def _question(self, node: Node, constants: Mapping[Value, Array]) -> str:
        """Return the text that identifies the timing question of a node."""

        def describe(value: Value | None) -> Any:
            return value and [str(value.spec), value in constants, value.literal]

        operands = [[describe(value) for value in side] for side in (node.inputs, node.outputs)]
        attrs = sorted(node.attrs.items(), key=lambda item: item[0])
        backends = [[backend.name, getattr(backend, "threads", None)] for backend in self.backends]
        where = [FORMAT, backends, sorted(self.opsets.items()), self.workspace, _machine()]
        return repr([node.op, attrs, operands, where])

    def _answer(self, node: Node, constants: Mapping[Value, Array], question: str) -> str:
        """Return the name of the fastest backend; "" without a choice."""
        key = sha256(question.encode()).hexdigest()
        cached = _cached_answer(key, "backend")
        if cached in ("", *(backend.name for backend in self.backends)):
            return str(cached)
        left = self._workspace_left(node)
        candidates = [b for b in self.backends if b.name != REFERENCE or node.op.startswith(NN)]
        able = [b for b in candidates if (kernel := b.kernel(node, constants)) and kernel.scratch <= left]
        seconds = time_backends(node, able, constants) if len(able) > 1 else {}
        best = min(seconds, key=lambda name: seconds[name]) if len(seconds) > 1 else ""
        _save_answer(key, {"backend": best, "seconds": seconds, "question": question})
        return best


def _is_tunable(node: Node) -> bool:
    """True if a kernel computes the node."""
    return not node.subgraphs and node.plannable and byte_copies(node) is None


def _save_answer(key: str, content: Mapping[str, Any]) -> None:
    """Store an answer in the cache on disk."""
    text = json.dumps(content)

    def write(fresh: Path) -> None:
        (fresh / CHOICE).write_text(text, encoding="utf-8")

    add_entry(CACHE, key, write)


def _cached_answer(key: str, name: str) -> Any:
    """Return the cached answer, None if absent; an unreadable entry is removed."""
    cached = find_entry(CACHE, key)
    if cached is None:
        return None
    try:
        return json.loads((cached / CHOICE).read_text(encoding="utf-8"))[name]
    except (OSError, ValueError, KeyError, TypeError):
        remove_entry(CACHE, key)
        return None


def time_backends(node: Node, backends: Sequence[Backend], constants: Mapping[Value, Array]) -> dict[str, float]:
    """Return the seconds per run of the node for each backend; backends failing on made-up operands are left out.

    Where some backends merge calls, a backend without merging also pays for the start of the next merged call.
    """
    seconds_of: dict[str, float] = {}
    starts: dict[str, float] = {}
    for backend in backends:
        calls = _bind_scratch_calls(node, backend, constants)
        if not calls:
            continue
        seconds_of[backend.name] = alone = _best_seconds(calls[0], 1)
        if isinstance(calls[0], Mergeable):
            chain, more = calls[0].merge_following(calls[1:])
            seconds_of[backend.name] = min(alone, _best_seconds(chain, 1 + more))
            starts[backend.name] = alone - seconds_of[backend.name]
    start = max(starts.values(), default=0.0)
    return {name: seconds + (0.0 if name in starts else start) for name, seconds in seconds_of.items()}


def _bind_scratch_calls(node: Node, backend: Backend, constants: Mapping[Value, Array]) -> list[Call]:
    """Return calls of the node under several names on the same scratch arrays, after one run; none on failure."""
    known = {value: constants[value] if value in constants else _array_of_ones(value) for value in node.uses}
    inputs = [None if value is None else known[value] for value in node.inputs]
    outputs = [None if value is None else _array_of_ones(value) for value in node.outputs]
    calls: list[Call] = []
    try:
        for i in range(CHAIN):
            kernel = backend.kernel(replace(node, name=f"{node.name}.{i}"), constants)
            assert kernel is not None
            scratch = aligned_bytes(kernel.scratch, 64) if kernel.scratch else None
            calls.append(kernel.bind(inputs, outputs, scratch))
            calls[0]()
            if not isinstance(calls[0], Mergeable):
                break
    except Exception:  # a made-up operand may be invalid for the op: an index out of range, a negative extent
        return []
    return calls


def _array_of_ones(value: Value) -> Array:
    """Return an array of ones: no divisor is 0, and most indices are in range."""
    spec = value.spec
    assert isinstance(spec, TensorSpec)
    array = array_over(aligned_bytes(spec.nbytes, 64), spec)
    array[...] = np.ones((), array.dtype)
    return array


def _best_seconds(call: Call, runs: int) -> float:
    """Return the seconds per run of a call making `runs` runs: the best of several rounds of calls."""
    begin = perf_counter()
    call()
    once = max(perf_counter() - begin, 1e-7)
    count = max(1, int(ROUND_SECONDS / once))
    best = once
    spent = 0.0
    for _ in range(ROUNDS):
        begin = perf_counter()
        for _ in range(count):
            call()
        took = perf_counter() - begin
        best, spent = min(best, took / count), spent + took
        if spent > ENOUGH_SECONDS:
            break
    return best / runs


@lru_cache(maxsize=1)
def _machine() -> tuple[str, ...]:
    """Return the facts that determine times: processor, number of cores, and versions of the libraries."""
    names = Path("/proc/cpuinfo")
    lines = names.read_text(encoding="utf-8", errors="replace").splitlines() if names.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = models[0] if models else platform.processor()
    return (platform.machine(), processor, str(os.cpu_count()), *map(version_of, PACKAGES))
