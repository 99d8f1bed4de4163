"""A call of a jit function: replayed as long as the steps match a recorded call, recorded from the first difference.

During a replay a command computes nothing: the step is matched with the trie of recorded calls, and the results are
deferred tensors. The plan of the most recent call with the same steps computes the deferred values when the user
observes a value, or at the end of the call. At the first step without a match, the deferred values are computed command
by command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from weakref import ref

import numpy as np

from sublet.base.errors import RunError
from sublet.base.interrupts import uninterrupted
from sublet.dynamic import compared
from sublet.dynamic.eager import OMITTED, Eager
from sublet.dynamic.gradients import Held, gradients
from sublet.dynamic.planned import Run
from sublet.dynamic.record import Symbol
from sublet.dynamic.storage import Storage
from sublet.dynamic.tensor import EagerTensor, NumberTensor, Owner, Parameter
from sublet.dynamic.traces import (
    APPLY,
    CUT,
    DETACH,
    END,
    GRADIENTS,
    UPDATE,
    Entry,
    Left,
    Moment,
    New,
    Number,
    Same,
    Step,
    delicate,
)
from sublet.dynamic.unrolled import Unrolled
from sublet.nn.lines import at_line, user_code
from sublet.nn.tensor import Tensor

LEFT = Left()


class Memory(Protocol):
    """The interface of a jit function for its calls: the trie of recorded calls, and the plans."""

    root: Moment

    def at_cut(self, call: Call, moment: Moment, slot: int) -> Storage:
        """Run the plan up to the suspension point `moment`, and return the storage of the observed value `slot`."""

    def at_end(self, call: Call, moment: Moment) -> None:
        """Run the rest of the plan, up to the end `moment`, and store the results and the updated parameters."""

    def recorded(self, call: Call) -> None:
        """Compute the deferred values command by command, and continue the call as a recorded call."""

    def learnt(self, call: Call) -> None:
        """Add the steps of a recorded call to the trie."""

    def missed(
        self, call: Call, moment: Moment, what: str, inputs: Sequence[Any], op: str, attrs: Mapping[str, Any]
    ) -> None:
        """Note the reason for the end of a replay: the step without a match after `moment`."""


class Call:
    """A call of a jit function in progress.

    Values of the call, including values from outside, are numbered in the order of appearance; a slot is the number of
    a value.

    path             the steps so far
    moment           the position in the trie during a replay; None for a recorded call
    handles          the user's tensors by slot, as weak references
    stored           the storages of computed values by slot, as weak references
    externals        the tensors from outside by slot
    numbers          the Python numbers from outside by slot
    contents_before  the storage and symbol, before the call, of every parameter updated in the call
    seen             the storages of observed values by slot
    since            the number of commands recorded for gradients before the call
    next             the next slot of a recorded call
    changed          True if a number constant until now has changed: plans below the present step are invalid
    run              the run of a plan, if begun
    """

    def __init__(self, owner: Owner, eager: Eager, memory: Memory, *, replay: bool) -> None:
        self.owner = owner
        self.eager = eager
        self.memory = memory
        self.since = eager.applications
        self.path: list[Step] = []
        self.moment: Moment | None = memory.root if replay and memory.root.children else None
        self.handles: dict[int, ref[EagerTensor]] = {}
        self.stored: dict[int, ref[Storage]] = {}
        self.outside: dict[int, EagerTensor] = {}
        self.numbers: dict[int, Any] = {}
        self.before: dict[Parameter, tuple[Storage, Symbol]] = {}
        self.seen: dict[int, Storage] = {}
        self.next = 0
        self.unrolled = Unrolled()
        self.changed = False
        self.run: Run | None = None

    # Actions of the user's function

    def apply(self, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[EagerTensor, ...]:
        """Apply a command: deferred if a recorded call continues in the same way, else computed and recorded."""
        if self.moment is not None:
            child = compared.plainly(self, op, inputs, attrs)
            if child is not None:
                return self._again(child, inputs)
            child = compared.command(self, op, inputs, attrs)
            if child is None:
                inputs = self._tensors(inputs)
                child = compared.command(self, op, inputs, attrs)
            if child is not None:
                return self._replayed(child, inputs)
            self._miss(self.moment, APPLY, inputs, op, attrs)
        inputs = self._tensors(inputs)
        operands = self.eager.operands(inputs)
        results = self.eager.apply(op, operands, attrs)
        specialized, _ = self.eager.find(op, operands, attrs)
        copied_attrs = {key: list(value) if isinstance(value, list) else value for key, value in attrs.items()}
        step = Step(
            APPLY,
            self._entries(inputs, operands),
            op,
            copied_attrs,
            repr(attrs),
            specialized.outputs,
            recording=self.eager.recording,
        )
        step.command, step.delicate = specialized, delicate(attrs)
        self._noted(step, results)
        return results

    def gradients(self, of: EagerTensor, wrt: Sequence[EagerTensor], seed: EagerTensor | None) -> list[EagerTensor]:
        """Return the gradients of `of` with respect to `wrt`, deferred in a replay."""
        inputs = [of, *wrt, seed]
        if self.moment is not None:
            child = compared.other(self, GRADIENTS, inputs)
            if child is not None:
                return list(self._replayed(child, inputs))
            self._miss(self.moment, GRADIENTS, inputs)
        entries = self._entries(inputs)
        at = None if seed is None else self._held(seed)
        results = gradients(self.eager, self._held(of), [self._held(one) for one in wrt], at, self.since)
        tensors = []
        for held in results:
            held.symbol.held = True
            tensors.append(EagerTensor(self.owner, held.symbol.kind, held.storage, held.symbol))
        kinds = tuple(one._kind for one in wrt)
        self._noted(Step(GRADIENTS, entries, kinds=kinds, recording=self.eager.recording), tensors)
        return tensors

    def update(self, target: Parameter, source: EagerTensor) -> None:
        """Assign the content of `source` to a parameter.

        In a replay the parameter keeps the old content until the end of the call.
        """
        if target not in self.before:
            self.eager.require_open()
            if target._storage is None:
                raise RunError(at_line(f"what {target.name!r} holds is not known"))
            self.before[target] = (target._storage, target.symbol)
        if self.moment is not None:
            child = compared.other(self, UPDATE, [source], target)
            if child is not None:
                self._stepped(child, [source])
                step = child.step
                assert step is not None
                self._own(target, step.base)  # the parameter keeps its content until the end of the call
                return
            self._miss(self.moment, UPDATE, [source])
        entries = self._entries([source])
        storage = self.eager.pool.filled(target._kind, self.storage(source).array)
        target._storage, target._symbol = storage, Symbol(target._kind, True)
        self._noted(
            Step(UPDATE, entries, kinds=(target._kind,), target=target, recording=self.eager.recording), [target]
        )

    def detached(self, tensor: EagerTensor) -> EagerTensor:
        """Return the tensor without gradients, deferred in a replay."""
        if self.moment is not None:
            child = compared.other(self, DETACH, [tensor])
            if child is not None:
                return self._replayed(child, [tensor])[0]
            self._miss(self.moment, DETACH, [tensor])
        entries = self._entries([tensor])
        detached = EagerTensor(self.owner, tensor._kind, self.storage(tensor), Symbol(tensor._kind, True))
        self._noted(Step(DETACH, entries, kinds=(tensor._kind,), recording=self.eager.recording), [detached])
        return detached

    def looked_at(self, tensor: EagerTensor) -> Storage:
        """Return the storage of an observed tensor; a deferred value is computed first."""
        slot = tensor._slot
        if tensor._call is not self or slot in self.outside or slot in self.seen:
            return self.storage(tensor)
        if self.moment is not None:
            for child in self.moment.children:
                step = child.step
                assert step is not None
                if step.what is CUT and step.kept[0] == slot:
                    self._stepped(child, ())
                    found: Storage = self.memory.at_cut(self, child, slot)
                    tensor._storage = self.seen[slot] = found
                    return found
            self._miss(self.moment, CUT, [tensor])
        saved = (slot, *(i for i, storage in self.stored.items() if i != slot and storage() is not None))
        self.path.append(Step(CUT, kept=saved, line=user_code()))
        computed: Storage = self.storage(tensor)
        self.seen[slot] = computed
        return computed

    def given(self, slot: int) -> tuple[Storage, Symbol]:
        """Return the storage and symbol of a tensor from outside at the start of the call."""
        tensor = self.outside[slot]
        held = self.before.get(tensor) if isinstance(tensor, Parameter) else None
        if held is None:
            assert tensor._storage is not None
            held = tensor._storage, tensor.symbol
        return held

    def storage(self, tensor: EagerTensor) -> Storage:
        """Return the storage of a computed tensor. Raises RunError for a tensor of a failed call."""
        if tensor._storage is None:
            raise RunError(at_line("the tensor was made in a call that failed, and never computed"))
        return tensor._storage

    # End of the call

    def ended(self) -> None:
        """Finish the call: compute the deferred values still held by the user, and store the updated parameters."""
        result_slots = tuple(sorted(slot for slot, tensor in self._alive().items() if slot not in self.seen))
        if self.moment is not None:
            for child in self.moment.children:
                step = child.step
                assert step is not None
                if step.what is END and step.kept == result_slots:
                    self._stepped(child, ())
                    self.memory.at_end(self, child)
                    self._close()
                    return
            self._miss(self.moment, END, ())
        self.path.append(Step(END, kept=result_slots))
        for _, symbol in self.before.values():
            symbol.dropped()
        self.memory.learnt(self)
        self._close()

    def failed(self, error: BaseException) -> None:
        """Restore the parameters after an exception in the function; the user's tensors are computed if possible."""
        try:
            if self.moment is not None and isinstance(error, Exception):
                self.memory.recorded(self)
        except Exception:  # the user sees the first error; tensors not computed raise RunError on use
            pass
        finally:
            with uninterrupted():
                for parameter, (storage, symbol) in self.before.items():
                    parameter._storage, parameter._symbol = storage, symbol
                self.moment = None
                self._close()

    def _close(self) -> None:
        """Detach all tensors from the call. Results keep no record for gradients."""
        for tensor in self._alive().values():
            tensor._call = None
            if tensor._storage is not None and not isinstance(tensor, Parameter):
                if tensor._symbol is not None:
                    tensor._symbol.dropped()
                tensor._symbol = Symbol(tensor._kind, True)
                tensor._symbol.ended = True
        for tensor in (*self.outside.values(), *self.before):
            tensor._call = None
        for table in (self.handles, self.stored, self.outside, self.before, self.seen):
            table.clear()

    def _alive(self) -> dict[int, EagerTensor]:
        """Return the user's tensors made by the call by slot, without parameters."""
        live = ((slot, handle()) for slot, handle in self.handles.items())
        return {slot: tensor for slot, tensor in live if tensor is not None and not isinstance(tensor, Parameter)}

    # Replaying

    def _tensors(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the operands, with arrays converted to tensors from outside."""
        plain = (None.__class__, bool, int, float, np.generic, Tensor)
        if all(isinstance(one, plain) for one in inputs):
            return inputs
        return [one if isinstance(one, plain) else self.eager.made(one) for one in inputs]

    def _again(self, child: Moment, inputs: Sequence[Any]) -> tuple[EagerTensor, ...]:
        """Replay a step matched by `match_latest`, without changed numbers; return the deferred results."""
        step: Any = child.step
        if step.opens:
            for entry, given in zip(step.operands, inputs, strict=True):
                if entry.__class__ is New:
                    self._take(entry, given)
        self.path.append(step)
        self.moment = child
        if len(step.kinds) > 1:
            return self._put_off(step)
        slot = step.base
        tensor = EagerTensor(self.owner, step.kinds[0], None, None, self, slot)
        self.handles[slot] = ref(tensor)
        return (tensor,)

    def _replayed(self, child: Moment, inputs: Sequence[Any]) -> tuple[EagerTensor, ...]:
        """Replay a matched step and return the deferred results."""
        step = child.step
        assert step is not None
        self._stepped(child, inputs)
        return self._put_off(step)

    def _put_off(self, step: Step) -> tuple[EagerTensor, ...]:
        """Return the results of a step as deferred tensors."""
        tensors = tuple(
            EagerTensor(self.owner, kind, None, None, self, step.base + i) for i, kind in enumerate(step.kinds)
        )
        self.handles.update((one._slot, ref(one)) for one in tensors)
        return tensors

    def _stepped(self, child: Moment, inputs: Sequence[Any]) -> None:
        """Advance to a matched step: store operands from outside, drop plans invalidated by a changed number."""
        step = child.step
        assert step is not None
        if step.fresh:
            for entry, given in zip(step.operands, inputs, strict=True):
                if entry.__class__ is New or (entry.__class__ is Number and (entry.varies or given is not entry.value)):
                    self._take(entry, given)
        if self.changed:
            self.changed = False
            for end in child.ends():
                end.plan = None
        self.path.append(step)
        self.moment = child

    def varies(self, entry: Number) -> None:
        """Note the first change of a number: the number becomes an input of future plans."""
        self.changed = True

    # Recording

    def _miss(self, moment: Moment, what: str, inputs: Sequence[Any], op: str = "", attrs: Any = None) -> None:
        """Note the reason for the end of the replay, and switch to recording."""
        self.memory.missed(self, moment, what, inputs, op, attrs or {})
        self.memory.recorded(self)

    def _held(self, tensor: EagerTensor) -> Held:
        """Return the symbol and storage of a tensor."""
        return Held(tensor.symbol, self.storage(tensor))

    def _entries(self, inputs: Sequence[Any], operands: Sequence[Any] | None = None) -> tuple[Entry, ...]:
        """Return the descriptions of the operands; an operand from outside gets a new slot."""
        entries: list[Entry] = []
        positions: dict[int, int] = {}
        for position, (given, operand) in enumerate(zip(inputs, operands or inputs, strict=True)):
            if operand is None or operand is OMITTED:
                entries.append(LEFT)
            elif isinstance(given, EagerTensor) and given._call is self:
                entries.append(Same(positions[given._slot]) if given._slot in positions else given._slot)
            else:
                entry = self._entry(given, operand)
                self._take(entry, given)
                if isinstance(given, EagerTensor):
                    positions[given._slot] = position
                entries.append(entry)
        return tuple(entries)

    def _entry(self, given: Any, operand: EagerTensor) -> New | Number:
        """Return the description of an operand from outside, with a new slot."""
        kind, slot = operand._kind, self.next
        self.next += 1
        if isinstance(given, NumberTensor):
            return Number(kind, slot, given.number)
        if isinstance(given, EagerTensor):
            return New(kind, slot, given if isinstance(given, Parameter) else None)
        return Number(kind, slot, given)

    def _take(self, entry: Any, given: Any) -> None:
        """Store a tensor or number from outside by slot."""
        slot = entry.slot
        if entry.__class__ is Number:
            self.numbers[slot] = given.number if isinstance(given, NumberTensor) else given
        if isinstance(given, EagerTensor) and (entry.__class__ is New or isinstance(given, NumberTensor)):
            self.outside[slot] = given
            given._call = self
            given._slot = slot

    def _noted(self, step: Step, made: Sequence[EagerTensor]) -> None:
        """Append a recorded step, and number its results."""
        step.base = self.next
        step.line = self.unrolled.note(user_code())
        step.fresh = any(isinstance(entry, New | Number) for entry in step.operands)
        step.opens = any(isinstance(entry, New) for entry in step.operands)
        self.next += len(made)
        self.path.append(step)
        for slot, tensor in zip(step.made, made, strict=True):
            self._own(tensor, slot)

    def _own(self, tensor: EagerTensor, slot: int) -> None:
        """Assign a slot of the call to a tensor."""
        tensor._call = self
        tensor._slot = slot
        self.handles[slot] = ref(tensor)
        if tensor._storage is not None and not isinstance(tensor, Parameter):
            self.stored[slot] = ref(tensor._storage)
