"""One network run several ways, which must agree bit for bit: unplanned, planned, and planned in poison."""

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
    """The outputs of the planned run, and how the runs differ: nothing, when all is right."""

    outputs: Mapping[str, Any]
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether all runs agree."""
        return not self.differences


def compare(unplanned: Executable, planned: Executable, inputs: Mapping[str, Any]) -> Comparison:
    """Run `unplanned`, `planned`, and `planned` in a poisoned arena, with the same inputs.

    Every run starts from the state of `planned`, which is as before afterwards; what the runs leave is compared too.
    Both have the same kernels; `unplanned` is planned with `Options(strategy="no_reuse", share=False)`, so that
    every tensor has bytes of its own. A difference names the first step whose result differs. Runs that are watched,
    where steps come one by one, are compared with such a run: some kernels give other last bits among others.
    """
    start, meant, ran = _state(planned), _Trace(unplanned), _Trace(planned)
    left: list[dict[str, Any]] = [{}, {}, {}]
    _start(unplanned, start)
    right = _ended(unplanned.watched(inputs, meant.watch, serial=True, left=left[0]), left[0])
    traced = _ended(planned.watched(inputs, ran.watch, serial=True, left=left[1]), left[1])
    poisoned = _ended(run_poisoned(planned, inputs, left=left[2]), left[2])
    plain = planned(inputs)
    runs = (
        ("the planned run", _ended(unplanned(inputs), _state(unplanned)), _ended(plain, _state(planned))),
        ("the traced run", right, traced),
        ("the poisoned run", right, poisoned),
    )
    _start(planned, start)
    differences = [
        f"{what}: {how} differs from the unplanned run{meant.first_difference(ran)}"
        for how, expected, found in runs
        for what in expected
        if not equal_bits(expected[what], found[what])
    ]
    return Comparison(plain, tuple(differences))


def _state(executable: Executable) -> dict[str, Any]:
    """What the updated inputs and weights hold, as far as that is known."""
    found: dict[str, Any] = {}
    for name in executable.updated:
        with suppress(RunError):  # an input that was never given
            found[name] = executable.state(name)
    return found


def _start(executable: Executable, state: Mapping[str, Any]) -> None:
    """Let the next run start from this state."""
    for name, content in state.items():
        executable.set_state(name, content)


def _ended(outputs: Mapping[str, Any], left: Mapping[str, Any]) -> dict[str, Any]:
    """What a run gave and the state it left, by what messages call them."""
    named = {f"output {name}": content for name, content in outputs.items()}
    return named | {f"state {name}": content for name, content in left.items()}


def equal_bits(a: Any, b: Any) -> bool:
    """Whether two results of runs are the same, bit for bit; nested lists and None included."""
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


def one_by_one(index: int, action: Call) -> Call:
    """A watch that sees nothing, but for which steps run one by one, as for any other."""
    return lambda: action()


class _Trace:
    """A digest of what each step wrote, in the order of the run."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._seen: list[tuple[str, bytes]] = []

    def watch(self, index: int, action: Call) -> Call:
        moment = self._executable.moments[index]
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
        """Where two runs part: the first step that wrote something else."""
        for (name, digest), (_, theirs) in zip(self._seen, other._seen, strict=False):
            if digest != theirs:
                return f" from {name} on"
        return ""
