"""A session over ranges of dimensions: calls with a state of their own, in the arena of one executable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.base.errors import KernelError, RunError
from sublet.base.extents import upper_bound
from sublet.base.formatting import known_names, printable
from sublet.base.interrupts import defer_interrupts
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.ir.graph import Value
from sublet.runtime.caller_memory import content_for, inputs_by_name
from sublet.runtime.kernel import Array
from sublet.runtime.ranged_inputs import shape_of
from sublet.runtime.ranged_places import state_block

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
        self._memory = {name: state_block(nbytes) for name, nbytes in most.items()}
        self._shapes: dict[str, tuple[int, ...]] = {}  # of the content of each state
        results_once = {result for result, times in Counter(state.values()).items() if times == 1}
        exchanged = (executable.outputs_outside & results_once) - set(executable.in_place.values())
        self._exchanged = {name: result for name, result in state.items() if result in exchanged}
        self._copied = {n: each for n, each in state.items() if n not in {*self._exchanged, *executable.in_place}}
        self._returned = [name for name in executable.outputs if name not in state.values()]
        self._uncertain: set[str] = set()

    def __repr__(self) -> str:
        return f"<RangedSession of {self._executable!r}: state {self.nbytes:,} bytes>"

    @property
    def nbytes(self) -> int:
        """The bytes held by the session for its state, at the largest extents."""
        return sum(block.raw.nbytes for block in self._memory.values())

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
        """Run once from the state of the session; the session keeps the new state.

        Raises the errors of a call of the executable, before the state changes; RunError for an uncertain state.
        """
        given = inputs_by_name(inputs, named)
        with self._executable.exclusive():
            self._require_certain(self._uncertain - given.keys())
            in_place = self._executable.in_place
            kept = {name: shape for name, shape in self._shapes.items() if name in in_place and name not in given}
            known = {name: self._content(name) for name in self._shapes if name not in in_place} | given
            missing = [name for name in self._sources if name not in kept and name not in known]
            if missing:
                shapes = {**kept, **{name: shape_of(content, name) for name, content in known.items()}}
                known.update({name: self._zeros(name, shapes) for name in missing})
            return self._run(known, kept, given.keys())

    def _run(self, known: Mapping[str, Any], kept: Mapping[str, tuple[int, ...]], given: Set[str]) -> dict[str, Any]:
        """Run once with all inputs, and keep the new state. The caller holds the lock of the executable.

        `given` are the inputs from the caller. A failed run leaves the rows of a window as they were, unless given.
        """
        executable, sources, exchanged = self._executable, self._sources, self._exchanged
        spares = {result: executable.take_spare(self._memory[name]) for name, result in exchanged.items()}
        updated, finished = {name: self._memory[name] for name in executable.in_place}, False
        try:
            with executable.run_in_arena(known, {**spares, **updated}, kept) as outputs:
                # An output may be the state of another input.
                contents = {n: executable.apart_from_inputs(result, outputs) for n, result in self._copied.items()}
                shapes = {name: outputs.shape_of(sources[name]) for name in (*exchanged, *updated)}
                with defer_interrupts() if contents or exchanged else nullcontext():  # else one update of a mapping
                    for name, result in exchanged.items():
                        self._memory[name], spares[result] = spares[result], self._memory[name]
                    self._shapes.update(shapes)
                    for name, content in contents.items():
                        self._store(name, content)
                    self._uncertain.clear()
                    finished = True
                return {name: executable.result(name, outputs[name]) for name in self._returned}
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
            if name not in self._shapes:
                raise RunError(f"{printable(name)} has no content yet; the state is {known_names(self._sources)}")
            self._require_certain(self._uncertain & {name})
            return self._content(name).copy()

    def set_state(self, name: str, content: Any) -> None:
        """Set the state of an input for the next call; the content is copied. Raises RunError for a wrong content."""
        if name not in self._sources:
            raise RunError(f"{printable(name)} is no state; the state is {known_names(self._sources)}")
        shape = shape_of(content, name)
        self._executable.shape_of_start(name, {name: shape})
        spec = TensorSpec(self._specs[name].dtype, shape)
        with self._executable.exclusive():
            self._store(name, content_for(Value(name, spec), content, name))
            self._uncertain.discard(name)

    def reset(self) -> None:
        """Forget the state: the next call starts as the first one did."""
        with self._executable.exclusive():
            self._shapes.clear()
            self._uncertain.clear()

    def _require_certain(self, lost: Set[str]) -> None:
        """Raise RunError if there are names of uncertain states."""
        if lost:
            raise RunError(
                f"the content of {known_names(sorted(lost))} is uncertain: a run failed during the update. "
                "Call `reset`, or `set_state` for each"
            )

    def _zeros(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> Array:
        """Return the content of a state at the start, beside other inputs of known shapes."""
        return np.zeros(self._executable.shape_of_start(name, shapes), NUMPY[self._specs[name].dtype])

    def _content(self, name: str) -> Array:
        """Return the content of a state, in its memory."""
        return self._executable.content_in(name, self._memory[name], self._shapes[name])

    def _store(self, name: str, content: Array) -> None:
        """Copy a content to the memory of the state."""
        self._shapes[name] = content.shape
        self._content(name)[...] = content
