"""Autotune [NNC: ccv_nnc_cmd_autotune]: of several backends that compute a node, the one that is fastest here.

Nodes of equal op, attributes and specs are one question. It is answered by timing each candidate on scratch arrays,
and the answer is kept in the cache on disk, by the machine, the versions and the question.
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

from sublet.base.cache import add_entry, entry, remove_entry
from sublet.base.extras import version_of
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.nn.command import PREFIX as NN
from sublet.runtime.copying import byte_copies
from sublet.runtime.dtypes import array_over
from sublet.runtime.kernel import Array, Backend, Call, Joinable
from sublet.runtime.memory import aligned_bytes

CACHE, CHOICE = "tuned", "choice.json"
FORMAT = "2"
REFERENCE = "reference"
"""Of an ONNX operator it is always slower than others; of a small command NumPy may be faster than PyTorch."""
WORKSPACE_BYTES = 256 << 20
"""Operands and scratch that timing one question may take."""

ROUNDS = 5
ROUND_SECONDS = 2e-3
ENOUGH_SECONDS = 0.1
"""A call that takes long is timed fewer times."""
CHAIN = 8
"""Calls that are joined to see what one costs among its like."""

PACKAGES = ("sublet", "numpy", "onnx", "onnxruntime", "torch")


@dataclass(frozen=True)
class Tuner:
    """Answers questions for one model.

    backends   the candidates, in order of preference; the reference only for commands of the nn dialect
    opsets     the versions of the operator sets: part of what an op means
    workspace  bytes that timing may take; a question that needs more is not asked
    """

    backends: Sequence[Backend]
    opsets: Mapping[str, int]
    workspace: int = WORKSPACE_BYTES

    def choices(self, graph: Graph, constants: Mapping[Value, Array]) -> dict[str, str]:
        """The name of the fastest backend, by name of the node, for all that several backends compute."""
        answers: dict[str, str] = {}
        chosen: dict[str, str] = {}
        for node in graph.walk():
            if not _timed(node):
                continue
            question = self._question(node, constants)
            if question not in answers:
                answers[question] = self._answer(node, constants, question)
            if answers[question]:
                chosen[node.name] = answers[question]
        return chosen

    def seconds(self, graph: Graph, constants: Mapping[Value, Array]) -> dict[str, float]:
        """Seconds of one run of each node of the root level, by name, with the first backend that has a kernel.

        Loops, branches, plain moves of bytes and what needs more than the workspace are left out.
        """
        answers: dict[str, float | None] = {}
        found: dict[str, float] = {}
        for node in graph.nodes:
            if not _timed(node):
                continue
            question = f"seconds of {self._question(node, constants)}"
            if question not in answers:
                answers[question] = self._seconds(node, constants, question)
            seconds = answers[question]
            if seconds is not None:
                found[node.name] = seconds
        return found

    def _seconds(self, node: Node, constants: Mapping[Value, Array], question: str) -> float | None:
        """None for what cannot be timed here."""
        left = self._left(node)
        if left < 0:
            return None
        key = sha256(question.encode()).hexdigest()
        kept = _remembered(key, "seconds")
        if isinstance(kept, float):
            return kept
        first = next(
            (b for b in self.backends if (kernel := b.kernel(node, constants)) and kernel.scratch <= left), None
        )
        seconds = timed(node, [first], constants).get(first.name) if first is not None else None
        if seconds is not None:
            _keep(key, {"seconds": seconds, "question": question})
        return seconds

    def _left(self, node: Node) -> int:
        """Bytes of the workspace that a kernel may have beside what it reads and writes."""
        return self.workspace - sum(value.nbytes for value in (*node.uses, *node.defs))

    def _question(self, node: Node, constants: Mapping[Value, Array]) -> str:
        def described(value: Value | None) -> Any:
            return value and [str(value.spec), value in constants, value.literal]

        operands = [[described(value) for value in side] for side in (node.inputs, node.outputs)]
        attrs = sorted(node.attrs.items(), key=lambda item: item[0])
        backends = [[backend.name, getattr(backend, "threads", None)] for backend in self.backends]
        where = [FORMAT, backends, sorted(self.opsets.items()), self.workspace, _machine()]
        return repr([node.op, attrs, operands, where])

    def _answer(self, node: Node, constants: Mapping[Value, Array], question: str) -> str:
        """The name of the fastest; "" when there is no choice."""
        key = sha256(question.encode()).hexdigest()
        kept = _remembered(key, "backend")
        if kept in ("", *(backend.name for backend in self.backends)):
            return str(kept)
        left = self._left(node)
        asked = [b for b in self.backends if b.name != REFERENCE or node.op.startswith(NN)]
        able = [b for b in asked if (kernel := b.kernel(node, constants)) and kernel.scratch <= left]
        seconds = timed(node, able, constants) if len(able) > 1 else {}
        best = min(seconds, key=lambda name: seconds[name]) if len(seconds) > 1 else ""
        _keep(key, {"backend": best, "seconds": seconds, "question": question})
        return best


def _timed(node: Node) -> bool:
    """Whether it is a command that a kernel computes."""
    return not node.subgraphs and node.plannable and byte_copies(node) is None


def _keep(key: str, content: Mapping[str, Any]) -> None:
    text = json.dumps(content)

    def write(fresh: Path) -> None:
        (fresh / CHOICE).write_text(text, encoding="utf-8")

    add_entry(CACHE, key, write)


def _remembered(key: str, name: str) -> Any:
    """The answer in the cache, None when there is none; an entry that cannot be read is removed."""
    kept = entry(CACHE, key)
    if kept is None:
        return None
    try:
        return json.loads((kept / CHOICE).read_text(encoding="utf-8"))[name]
    except (OSError, ValueError, KeyError, TypeError):
        remove_entry(CACHE, key)
        return None


def timed(node: Node, backends: Sequence[Backend], constants: Mapping[Value, Array]) -> dict[str, float]:
    """Seconds that each backend takes for one run of the node; those that fail on made-up operands are left out.

    Where some calls can be joined, one that cannot breaks the chain: it pays for starting the next one.
    """
    found: dict[str, float] = {}
    starts: dict[str, float] = {}
    for backend in backends:
        calls = _bound(node, backend, constants)
        if not calls:
            continue
        found[backend.name] = alone = _least(calls[0], 1)
        if isinstance(calls[0], Joinable):
            chain, more = calls[0].joined(calls[1:])
            found[backend.name] = min(alone, _least(chain, 1 + more))
            starts[backend.name] = alone - found[backend.name]
    start = max(starts.values(), default=0.0)
    return {name: seconds + (0.0 if name in starts else start) for name, seconds in found.items()}


def _bound(node: Node, backend: Backend, constants: Mapping[Value, Array]) -> list[Call]:
    """Calls of the node under several names on the same scratch arrays, once one has run; none if it cannot."""
    known = {value: constants[value] if value in constants else _made_up(value) for value in node.uses}
    inputs = [None if value is None else known[value] for value in node.inputs]
    outputs = [None if value is None else _made_up(value) for value in node.outputs]
    calls: list[Call] = []
    try:
        for i in range(CHAIN):
            kernel = backend.kernel(replace(node, name=f"{node.name}.{i}"), constants)
            assert kernel is not None
            scratch = aligned_bytes(kernel.scratch, 64) if kernel.scratch else None
            calls.append(kernel.bind(inputs, outputs, scratch))
            calls[0]()
            if not isinstance(calls[0], Joinable):
                break
    except Exception:  # a made-up operand may be no operand of this op: an index out of range, a negative extent
        return []
    return calls


def _made_up(value: Value) -> Array:
    """An array of ones: no divisor is 0, and most indices are in range."""
    spec = value.spec
    assert isinstance(spec, TensorSpec)
    array = array_over(aligned_bytes(spec.nbytes, 64), spec)
    array[...] = np.ones((), array.dtype)
    return array


def _least(call: Call, runs: int) -> float:
    """Seconds of a run, where a call makes `runs`: the best of several rounds of calls."""
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
    """What times depend on: the processor, how many of them, and the versions of what computes."""
    names = Path("/proc/cpuinfo")
    lines = names.read_text(encoding="utf-8", errors="replace").splitlines() if names.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = models[0] if models else platform.processor()
    return (platform.machine(), processor, str(os.cpu_count()), *map(version_of, PACKAGES))
