"""Differential execution: one network unplanned, planned, and planned in poisoned memory, compared bit by bit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from sublet.base.errors import RunError
from sublet.ir.graph import Value
from sublet.plan import RUN, Context
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Call
from sublet.runtime.poison import run_poisoned


@dataclass(frozen=True)
class Comparison:
    """The outputs of the planned run, and the differences between the runs: none if the plan is right."""

    outputs: Mapping[str, Any]
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """True if all runs agree."""
        return not self.differences


def compare(unplanned: Executable, planned: Executable, inputs: Mapping[str, Any]) -> Comparison:
    """Run `unplanned`, `planned`, and `planned` in a poisoned arena, with the same inputs.

    Every run starts from the state of `planned`, which is restored afterwards; the states after the runs are compared
    too. Both executables have the same kernels. `unplanned` has a plan with `Options(strategy="no_reuse",
    share=False)`, so that no two tensors share bytes. A difference names the first step with a different result.
    Watched runs, with steps one by one, are compared with a watched run: merged kernels can differ in the last bits.
    """
    start, expected_trace, planned_trace = _state_of(planned), _Trace(unplanned), _Trace(planned)
    left: list[dict[str, Any]] = [{}, {}, {}]
    _set_start_state(unplanned, start)
    right = _label_results(unplanned.run_watched(inputs, expected_trace.watch, serial=True, left=left[0]), left[0])
    traced = _label_results(planned.run_watched(inputs, planned_trace.watch, serial=True, left=left[1]), left[1])
    poisoned = _label_results(run_poisoned(planned, inputs, left=left[2]), left[2])
    plain = planned(inputs)
    runs = (
        (
            "the planned run",
            _label_results(unplanned(inputs), _state_of(unplanned)),
            _label_results(plain, _state_of(planned)),
        ),
        ("the traced run", right, traced),
        ("the poisoned run", right, poisoned),
    )
    _set_start_state(planned, start)
    differences = [
        f"{what}: {how} differs from the unplanned run{expected_trace.first_difference(planned_trace)}"
        for how, expected, found in runs
        for what in expected
        if not equal_bits(expected[what], found[what])
    ]
    return Comparison(plain, tuple(differences))


def _state_of(executable: Executable) -> dict[str, Any]:
    """Return the contents of the updated inputs and weights, as far as known."""
    contents: dict[str, Any] = {}
    for name in executable.updated:
        with suppress(RunError):  # an updated input without a content yet
            contents[name] = executable.state(name)
    return contents


def _set_start_state(executable: Executable, state: Mapping[str, Any]) -> None:
    """Set the state for the next run."""
    for name, content in state.items():
        executable.set_state(name, content)


def _label_results(outputs: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs and the final state of a run, keyed by their names in messages."""
    labelled = {f"output {name}": content for name, content in outputs.items()}
    return labelled | {f"state {name}": content for name, content in state.items()}


def equal_bits(a: Any, b: Any) -> bool:
    """True if two results are equal bit by bit; nested lists and None included."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(equal_bits(x, y) for x, y in zip(a, b, strict=True))
    if a is None or b is None:
        return a is b
    first, second = np.asarray(a), np.asarray(b)
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if first.dtype.hasobject or first.dtype.kind in "US":
        return bool(np.array_equal(first, second))
    return first.tobytes() == second.tobytes()


def watch_steps(index: int, action: Call) -> Call:
    """Return the action unchanged, as a watch; watched runs execute steps one by one."""
    return lambda: action()


class _Trace:
    """Digests of the values written by each step, in the order of the run."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._seen: list[tuple[str, bytes]] = []

    def watch(self, index: int, action: Call) -> Call:
        """Return the action of a node with a digest of the written values after each run; other actions unchanged."""
        moment = self._executable.point_accesses[index]
        written = [value for value in moment.writes if value.plannable]

        def act() -> Any:
            result = action()
            self._seen.append((str(moment), self._digest(written, moment.copies)))
            return result

        return act if moment.kind == RUN else action

    def _digest(self, values: list[Value], copies: Context) -> bytes:
        digest = blake2b(digest_size=16)
        for value in values:
            digest.update(self._executable.bytes_of(value, copies).data)
        return digest.digest()

    def first_difference(self, other: _Trace) -> str:
        """Return a phrase naming the first step with other results; "" if all agree."""
        for (name, digest), (_, theirs) in zip(self._seen, other._seen, strict=False):
            if digest != theirs:
                return f" from {name} on"
        return ""
