"""The switch from replay to recording: the deferred values of a call are computed, command by command.

Values saved at the latest suspension point are not computed again, except for gradients of gradients. The rebuild
restores the tensors held by the user, the parameters, and the part of the record needed for gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import ref

from sublet.dynamic.call_trie import APPLY, GRADIENTS, CallStep, ExternalTensor, NumberOperand
from sublet.dynamic.eager_executor import EagerExecutor
from sublet.dynamic.gradient_record import Symbol
from sublet.dynamic.jit_call import JitCall
from sublet.dynamic.record_gradients import RecordedValue, gradients
from sublet.dynamic.tensor import Parameter
from sublet.dynamic.tensor_storage import TensorStorage


def compute_deferred(call: JitCall, there: Mapping[int, TensorStorage]) -> None:
    """Compute all deferred tensors of a call. `there` are the storages of values computed already, by slot."""
    alive = {slot: tensor for slot, handle in call.handles.items() if (tensor := handle()) is not None}
    work = _StepsToRepeat(call.path, alive, there)
    again = _StepRepetition(call, work, there)
    again.repeat_steps()
    for slot, tensor in alive.items():
        tensor._storage, tensor._symbol = again.storages[slot], again.symbols[slot]
        if not isinstance(tensor, Parameter):
            call.stored[slot] = ref(again.storages[slot])
    for slot, symbol in again.symbols.items():
        if slot in work.maker and slot not in alive:
            symbol.release_handle()


class _StepsToRepeat:
    """The steps to repeat.

    computed   the first result slots of the steps to compute
    recorded   the first result slots of the commands to record
    """

    def __init__(
        self, path: Sequence[CallStep], alive: Mapping[int, object], there: Mapping[int, TensorStorage]
    ) -> None:
        self.maker: dict[int, CallStep] = {slot: step for step in path for slot in step.result_slots}
        self.computed: set[int] = set()
        self.recorded: set[int] = set()
        needed, trailing = list(alive), list(alive)
        while needed or trailing:
            while trailing:
                trailing += self._mark_recorded(self.maker.get(trailing.pop()), needed)
            while needed:
                slot = needed.pop()
                if slot not in there:
                    trailing += self._mark_computed(self.maker.get(slot), needed)

    def _mark_recorded(self, step: CallStep | None, needed: list[int]) -> list[int]:
        """Mark a step for recording; return the slots to follow in the record."""
        if step is None or not step.recording or step.base in self.recorded:
            return []
        if step.what is GRADIENTS:
            self.recorded.add(step.base)
            return self._mark_computed(step, needed)
        if step.what is not APPLY or not step.command.recorded:
            return []
        self.recorded.add(step.base)
        reads, gives = step.command.keeps
        at = step.operand_slots
        needed += [slot for slot in (at[i] for i in reads) if slot is not None]
        needed += [step.base + i for i in gives]
        return [slot for slot in at if slot is not None]

    def _mark_computed(self, step: CallStep | None, needed: list[int]) -> list[int]:
        """Mark a step for computing; return the slots needed in the record."""
        if step is None or step.base in self.computed:
            return []
        self.computed.add(step.base)
        read = [slot for slot in step.operand_slots if slot is not None]
        needed += read
        return read if step.what is GRADIENTS else []


class _StepRepetition:
    """The repetition of the steps of a call."""

    def __init__(self, call: JitCall, work: _StepsToRepeat, there: Mapping[int, TensorStorage]) -> None:
        self._call = call
        self._eager: EagerExecutor = call.eager
        self._work = work
        self.storages: dict[int, TensorStorage] = dict(there)
        self.symbols: dict[int, Symbol] = {}

    def repeat_steps(self) -> None:
        """Repeat the steps in order."""
        recording = self._eager.recording
        try:
            for step in self._call.path:
                for entry in step.external_operands:
                    self._load_external(entry)
                self._eager.recording = step.recording
                self._repeat_step(step)
        finally:
            self._eager.recording = recording

    def _load_external(self, entry: ExternalTensor | NumberOperand) -> None:
        """Set the storage and symbol of an operand from outside."""
        call, slot, kind = self._call, entry.slot, entry.kind
        if slot in call.externals:
            self.storages[slot], self.symbols[slot] = call.content_at_start(slot)
        else:
            assert isinstance(entry, NumberOperand)
            number = self._eager.number(call.numbers.get(slot, entry.value), kind.dtype)
            assert number._storage is not None
            self.storages[slot], self.symbols[slot] = number._storage, Symbol(kind, False)

    def _repeat_step(self, step: CallStep) -> None:
        """Repeat a step: compute and record as marked."""
        if step.what is GRADIENTS and step.base in self._work.computed:
            of, *wrt, seed = (None if slot is None else self._recorded_value(slot) for slot in step.operand_slots)
            assert of is not None
            targets = [one for one in wrt if one is not None]
            for slot, held in zip(
                step.result_slots, gradients(self._eager, of, targets, seed, self._call.since), strict=True
            ):
                held.symbol.held = True
                self.storages[slot], self.symbols[slot] = held.storage, held.symbol
            return
        for slot, kind in zip(step.result_slots, step.kinds, strict=True):
            self.symbols[slot] = Symbol(kind, True)
        inputs = [None if slot is None else self.storages.get(slot) for slot in step.operand_slots]
        if step.base in self._work.computed:
            made = (
                self._eager.compute(step.command, inputs)
                if step.what is APPLY
                else self._content_of_alias(step, inputs)
            )
            self.storages.update(zip(step.result_slots, made, strict=True))
        if step.what is APPLY and step.base in self._work.recorded:
            symbols = [None if slot is None else self.symbols.get(slot) for slot in step.operand_slots]
            results = [self.storages.get(slot) for slot in step.result_slots]
            outputs = [self.symbols[slot] for slot in step.result_slots]
            self._eager.record(step.command, symbols, outputs, inputs, results, step.line)

    def _content_of_alias(self, step: CallStep, inputs: Sequence[TensorStorage | None]) -> list[TensorStorage]:
        """Return the content of an update or a detached tensor: a copy for a parameter, the same storage otherwise."""
        (source,) = inputs
        assert source is not None
        return [source if step.target is None else self._eager.pool.store_copy(step.kinds[0], source.array)]

    def _recorded_value(self, slot: int) -> RecordedValue:
        """Return the symbol and storage of a slot."""
        return RecordedValue(self.symbols[slot], self.storages[slot])
