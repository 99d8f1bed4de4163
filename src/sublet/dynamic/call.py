"""One call of a remembered function: replayed as long as Python does what was seen before, recorded from there on.

While a call is replayed, a command computes nothing: the step is held against the trie, and its results are tensors
that are put off. What they hold is computed when somebody looks at one of them, or at the end, by the plan of the
call that came this way last. Where Python does something else, what was put off is computed command by command.
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
    """What is remembered of a function, as a call of it sees it."""

    root: Moment

    def at_cut(self, call: Call, moment: Moment, slot: int) -> Storage:
        """A value that is looked at, computed by the plan."""

    def at_end(self, call: Call, moment: Moment) -> None:
        """Compute the rest by the plan."""

    def recorded(self, call: Call) -> None:
        """Compute what was put off, command by command."""

    def learnt(self, call: Call) -> None:
        """Remember what a call did."""

    def missed(
        self, call: Call, moment: Moment, what: str, inputs: Sequence[Any], op: str, attrs: Mapping[str, Any]
    ) -> None:
        """Note why a call is not replayed."""


class Call:
    """A call. `path` are its steps so far; values are numbered as they come up, those from outside too.

    moment    where in the trie it is; None once it is recorded
    handles   the tensors of the user's by the number of their value
    outside   the tensors from outside by number
    before    what the parameters held that were updated in the call
    seen      the numbers of the values that were looked at
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

    # What Python does

    def apply(self, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[EagerTensor, ...]:
        """A command."""
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
        made = self.eager.apply(op, operands, attrs)
        found, _ = self.eager.find(op, operands, attrs)
        copied = {key: list(value) if isinstance(value, list) else value for key, value in attrs.items()}
        step = Step(
            APPLY,
            self._entries(inputs, operands),
            op,
            copied,
            repr(attrs),
            found.outputs,
            recording=self.eager.recording,
        )
        step.command, step.delicate = found, delicate(attrs)
        self._noted(step, made)
        return made

    def gradients(self, of: EagerTensor, wrt: Sequence[EagerTensor], seed: EagerTensor | None) -> list[EagerTensor]:
        """Gradients."""
        inputs = [of, *wrt, seed]
        if self.moment is not None:
            found = compared.other(self, GRADIENTS, inputs)
            if found is not None:
                return list(self._replayed(found, inputs))
            self._miss(self.moment, GRADIENTS, inputs)
        entries = self._entries(inputs)
        at = None if seed is None else self._held(seed)
        results = gradients(self.eager, self._held(of), [self._held(one) for one in wrt], at, self.since)
        made = []
        for held in results:
            held.symbol.held = True
            made.append(EagerTensor(self.owner, held.symbol.kind, held.storage, held.symbol))
        kinds = tuple(one._kind for one in wrt)
        self._noted(Step(GRADIENTS, entries, kinds=kinds, recording=self.eager.recording), made)
        return made

    def update(self, target: Parameter, source: EagerTensor) -> None:
        """A parameter takes another content."""
        if target not in self.before:
            self.eager.require_open()
            if target._storage is None:
                raise RunError(at_line(f"what {target.name!r} holds is not known"))
            self.before[target] = (target._storage, target.symbol)
        if self.moment is not None:
            found = compared.other(self, UPDATE, [source], target)
            if found is not None:
                self._stepped(found, [source])
                step = found.step
                assert step is not None
                self._own(target, step.base)  # it holds what it held, until the call ends
                return
            self._miss(self.moment, UPDATE, [source])
        entries = self._entries([source])
        storage = self.eager.pool.filled(target._kind, self.storage(source).array)
        target._storage, target._symbol = storage, Symbol(target._kind, True)
        self._noted(
            Step(UPDATE, entries, kinds=(target._kind,), target=target, recording=self.eager.recording), [target]
        )

    def detached(self, tensor: EagerTensor) -> EagerTensor:
        """The same elements, through which no gradient goes."""
        if self.moment is not None:
            found = compared.other(self, DETACH, [tensor])
            if found is not None:
                return self._replayed(found, [tensor])[0]
            self._miss(self.moment, DETACH, [tensor])
        entries = self._entries([tensor])
        made = EagerTensor(self.owner, tensor._kind, self.storage(tensor), Symbol(tensor._kind, True))
        self._noted(Step(DETACH, entries, kinds=(tensor._kind,), recording=self.eager.recording), [made])
        return made

    def looked_at(self, tensor: EagerTensor) -> Storage:
        """What a tensor holds: its value is computed, if it was put off."""
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
        kept = (slot, *(i for i, storage in self.stored.items() if i != slot and storage() is not None))
        self.path.append(Step(CUT, kept=kept, line=user_code()))
        here: Storage = self.storage(tensor)
        self.seen[slot] = here
        return here

    def given(self, slot: int) -> tuple[Storage, Symbol]:
        """What a tensor from outside held when the call began."""
        tensor = self.outside[slot]
        held = self.before.get(tensor) if isinstance(tensor, Parameter) else None
        if held is None:
            assert tensor._storage is not None
            held = tensor._storage, tensor.symbol
        return held

    def storage(self, tensor: EagerTensor) -> Storage:
        """What a tensor holds that is not put off."""
        if tensor._storage is None:
            raise RunError(at_line("the tensor was made in a call that failed, and never computed"))
        return tensor._storage

    # How it ends

    def ended(self) -> None:
        """The function has returned: what is left is computed, and the parameters take what they were updated to."""
        left = tuple(sorted(slot for slot, tensor in self._alive().items() if slot not in self.seen))
        if self.moment is not None:
            for child in self.moment.children:
                step = child.step
                assert step is not None
                if step.what is END and step.kept == left:
                    self._stepped(child, ())
                    self.memory.at_end(self, child)
                    self._close()
                    return
            self._miss(self.moment, END, ())
        self.path.append(Step(END, kept=left))
        for _, symbol in self.before.values():
            symbol.dropped()
        self.memory.learnt(self)
        self._close()

    def failed(self, error: BaseException) -> None:
        """The function has raised: the parameters hold what they held before."""
        try:
            if self.moment is not None and isinstance(error, Exception):
                self.memory.recorded(self)
        except Exception:  # the first error is told; what could not be computed says so when it is used
            pass
        finally:
            with uninterrupted():
                for parameter, (storage, symbol) in self.before.items():
                    parameter._storage, parameter._symbol = storage, symbol
                self.moment = None
                self._close()

    def _close(self) -> None:
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
        """The tensors of the user's that the call made, but for parameters."""
        there = ((slot, handle()) for slot, handle in self.handles.items())
        return {slot: tensor for slot, tensor in there if tensor is not None and not isinstance(tensor, Parameter)}

    # Replaying

    def _tensors(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The operands with arrays as tensors: they come from outside."""
        plain = (None.__class__, bool, int, float, np.generic, Tensor)
        if all(isinstance(one, plain) for one in inputs):
            return inputs
        return [one if isinstance(one, plain) else self.eager.made(one) for one in inputs]

    def _again(self, child: Moment, inputs: Sequence[Any]) -> tuple[EagerTensor, ...]:
        """What was plainly the same is replayed: no number is another one than before."""
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
        step = child.step
        assert step is not None
        self._stepped(child, inputs)
        return self._put_off(step)

    def _put_off(self, step: Step) -> tuple[EagerTensor, ...]:
        made = tuple(
            EagerTensor(self.owner, kind, None, None, self, step.base + i) for i, kind in enumerate(step.kinds)
        )
        self.handles.update((one._slot, ref(one)) for one in made)
        return made

    def _stepped(self, child: Moment, inputs: Sequence[Any]) -> None:
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
        """A number is another one than before."""
        self.changed = True

    # Recording

    def _miss(self, moment: Moment, what: str, inputs: Sequence[Any], op: str = "", attrs: Any = None) -> None:
        self.memory.missed(self, moment, what, inputs, op, attrs or {})
        self.memory.recorded(self)

    def _held(self, tensor: EagerTensor) -> Held:
        return Held(tensor.symbol, self.storage(tensor))

    def _entries(self, inputs: Sequence[Any], operands: Sequence[Any] | None = None) -> tuple[Entry, ...]:
        """What the operands are; those from outside get numbers."""
        found: list[Entry] = []
        here: dict[int, int] = {}
        for position, (given, operand) in enumerate(zip(inputs, operands or inputs, strict=True)):
            if operand is None or operand is OMITTED:
                found.append(LEFT)
            elif isinstance(given, EagerTensor) and given._call is self:
                found.append(Same(here[given._slot]) if given._slot in here else given._slot)
            else:
                entry = self._entry(given, operand)
                self._take(entry, given)
                if isinstance(given, EagerTensor):
                    here[given._slot] = position
                found.append(entry)
        return tuple(found)

    def _entry(self, given: Any, operand: EagerTensor) -> New | Number:
        kind, slot = operand._kind, self.next
        self.next += 1
        if isinstance(given, NumberTensor):
            return Number(kind, slot, given.number)
        if isinstance(given, EagerTensor):
            return New(kind, slot, given if isinstance(given, Parameter) else None)
        return Number(kind, slot, given)

    def _take(self, entry: Any, given: Any) -> None:
        """A tensor or number from outside comes in."""
        slot = entry.slot
        if entry.__class__ is Number:
            self.numbers[slot] = given.number if isinstance(given, NumberTensor) else given
        if isinstance(given, EagerTensor) and (entry.__class__ is New or isinstance(given, NumberTensor)):
            self.outside[slot] = given
            given._call = self
            given._slot = slot

    def _noted(self, step: Step, made: Sequence[EagerTensor]) -> None:
        step.base = self.next
        step.line = self.unrolled.note(user_code())
        step.fresh = any(isinstance(entry, New | Number) for entry in step.operands)
        step.opens = any(isinstance(entry, New) for entry in step.operands)
        self.next += len(made)
        self.path.append(step)
        for slot, tensor in zip(step.made, made, strict=True):
            self._own(tensor, slot)

    def _own(self, tensor: EagerTensor, slot: int) -> None:
        tensor._call = self
        tensor._slot = slot
        self.handles[slot] = ref(tensor)
        if tensor._storage is not None and not isinstance(tensor, Parameter):
            self.stored[slot] = ref(tensor._storage)
