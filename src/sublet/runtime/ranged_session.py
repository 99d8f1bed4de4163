"""A session over ranges of dimensions: calls with a state of their own, in the arena of one executable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.base.errors import KernelError, RunError
from sublet.base.extents import upper_bound
from sublet.base.formatting import known_names, printable
from sublet.base.interrupts import defer_interrupts
from sublet.base.tensor import CACHE_LINE_BYTES, NUMPY, TensorSpec
from sublet.ir.graph import Value
from sublet.runtime.caller_memory import content_for, inputs_by_name
from sublet.runtime.kernel import Array
from sublet.runtime.memory import aligned_bytes

if TYPE_CHECKING:
    from sublet.runtime.ranged import RangedExecutable


class RangedSession:
    """Calls with a state of their own: inputs that take the content of an output after each call.

    The memory of the state has room for the largest output, so the session never allocates again. The state starts
    with zeros, of the least extent where the other inputs decide none (an empty past). A call may leave out the inputs
    of the state, and returns the other outputs. A failed call leaves the state as it was.

    With inputs and outputs in the arena, the state is copied into the arena and back. With bound inputs and outputs,
    kernels read the state in place and write the new state to spare memory, which the session then keeps in exchange
    for its own. All sessions of an executable share the spare memory, as large as one state. A state that a kernel
    updates in place stays where it is; if a kernel fails in such a call, the state is uncertain until `reset` or
    `set_state`.
    """

    def __init__(self, executable: RangedExecutable, state: Mapping[str, str]) -> None:
        self._executable = executable
        self._sources = dict(state)
        results = {name: executable.outputs[result].spec for name, result in state.items()}
        self._specs = {name: spec for name, spec in results.items() if isinstance(spec, TensorSpec)}
        specs = self._specs.items()
        most = {name: max(upper_bound(s.nbytes), upper_bound(executable.inputs[name].nbytes)) for name, s in specs}
        self._raw = {name: aligned_bytes(nbytes, CACHE_LINE_BYTES) for name, nbytes in most.items()}
        results_once = {result for result, times in Counter(state.values()).items() if times == 1}
        self._exchanged = (executable.outputs_outside & results_once) - set(executable.in_place.values())
        self._current: dict[str, Array] = {}
        self._uncertain: set[str] = set()

    def __repr__(self) -> str:
        return f"<RangedSession of {self._executable!r}: state {self.nbytes:,} bytes>"

    @property
    def nbytes(self) -> int:
        """The bytes held by the session for its state, at the largest extents."""
        return sum(raw.nbytes for raw in self._raw.values())

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
        """Run once from the state of the session; the session keeps the new state.

        Raises the errors of a call of the executable, before the state changes; RunError for an uncertain state.
        """
        given = inputs_by_name(inputs, named)
        with self._executable.exclusive():
            self._require_certain(self._uncertain - given.keys())
            missing = [name for name in self._sources if name not in given and name not in self._current]
            known = {**self._current, **given}
            known.update({name: self._zeros(name, known) for name in missing})
            return self._run(known, given.keys())

    def _run(self, known: Mapping[str, Any], given: Set[str]) -> dict[str, Any]:
        """Run once with all inputs, and keep the new state. The caller holds the lock of the executable.

        `given` are the inputs from the caller. A failed run leaves the rows of a window as they were, unless given.
        """
        executable, sources = self._executable, self._sources
        exchanged = {name: result for name, result in sources.items() if result in self._exchanged}
        spares = {result: executable.take_spare(self._raw[name]) for name, result in exchanged.items()}
        updated, finished = {name: self._raw[name] for name in executable.in_place}, False
        try:
            with executable.run_in_arena(known, {**spares, **updated}) as outputs:
                copied = {name: result for name, result in sources.items() if name not in {*exchanged, *updated}}
                # An output may be the state of another input.
                contents = {name: executable.apart_from_inputs(result, outputs) for name, result in copied.items()}
                with defer_interrupts():
                    for name, result in exchanged.items():
                        self._raw[name], spares[result] = spares[result], self._raw[name]
                    self._current.update({name: outputs[sources[name]] for name in (*exchanged, *updated)})
                    for name, content in contents.items():
                        self._store(name, content)
                    self._uncertain.clear()
                    finished = True
                kept = outputs.keys() - set(sources.values())
                return {name: executable.result(name, array) for name, array in outputs.items() if name in kept}
        except BaseException as error:
            if not finished and (
                not isinstance(error, RunError) or isinstance(error, KernelError)
            ):  # else before the run
                self._uncertain.update(name for name in updated if name not in executable.windows or name in given)
            raise
        finally:
            executable.return_spares(spares.values())

    def state(self, name: str) -> Array:
        """Return a copy of the state of an input.

        Raises RunError before the first call, for another name, and for an uncertain state.
        """
        with self._executable.exclusive():
            if name not in self._current:
                raise RunError(f"{printable(name)} has no content yet; the state is {known_names(self._sources)}")
            self._require_certain(self._uncertain & {name})
            return self._current[name].copy()

    def set_state(self, name: str, content: Any) -> None:
        """Set the state of an input for the next call; the content is copied. Raises RunError for a wrong content."""
        if name not in self._sources:
            raise RunError(f"{printable(name)} is no state; the state is {known_names(self._sources)}")
        self._executable.shape_of_start(name, {name: content})
        spec = TensorSpec(self._specs[name].dtype, np.shape(content))
        with self._executable.exclusive():
            self._store(name, content_for(Value(name, spec), content, name))
            self._uncertain.discard(name)

    def reset(self) -> None:
        """Forget the state: the next call starts as the first one did."""
        with self._executable.exclusive():
            self._current.clear()
            self._uncertain.clear()

    def _require_certain(self, lost: Set[str]) -> None:
        """Raise RunError if there are names of uncertain states."""
        if lost:
            raise RunError(
                f"the content of {known_names(sorted(lost))} is uncertain: a run failed during the update. "
                "Call `reset`, or `set_state` for each"
            )

    def _zeros(self, name: str, given: Mapping[str, Any]) -> Array:
        """Return the content of a state at the start."""
        return np.zeros(self._executable.shape_of_start(name, given), NUMPY[self._specs[name].dtype])

    def _store(self, name: str, content: Array) -> None:
        """Copy a content to the memory of the state."""
        self._current[name] = self._executable.content_in(name, self._raw[name], content.shape)
        self._current[name][...] = content
