"""A call of a jit function: replayed as long as the steps match a recorded call, recorded from the first difference.

During a replay a command computes nothing: the step is matched with the trie of recorded calls, and the results are
deferred tensors. The plan of the most recent call with the same steps computes the deferred values when the user
observes a value, or at the end of the call. At the first step without a match, the deferred values are computed command
by command.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from weakref import ref

import numpy as np

from sublet.base.errors import RunError
from sublet.base.interrupts import defer_interrupts
from sublet.dynamic import call_trie
from sublet.dynamic.call_trie import (
    APPLY,
    DETACH,
    END,
    GRADIENTS,
    OBSERVE,
    UPDATE,
    CallStep,
    ExternalTensor,
    NumberOperand,
    OmittedOperand,
    RepeatedOperand,
    StepOperand,
    TrieNode,
    needs_exact_attributes,
)
from sublet.dynamic.eager_executor import OMITTED, EagerExecutor
from sublet.dynamic.gradient_record import Symbol
from sublet.dynamic.planned_call import PlannedRun
from sublet.dynamic.record_gradients import RecordedValue, gradients
from sublet.dynamic.tensor import EagerTensor, NumberTensor, Parameter, TensorOwner
from sublet.dynamic.tensor_storage import TensorStorage
from sublet.nn.source_location import CodePosition, at_line, format_position, user_position
from sublet.nn.tensor import Tensor

# A warning for Python loops in jit functions: every iteration is recorded as separate steps.

MAX_SILENT_ITERATIONS = 1000
"""Steps recorded for one line of a call without a warning; the warning comes once, at the next step."""


class IterationCounter:
    """The number of steps recorded in a call for each line of the user's program."""

    def __init__(self) -> None:
        self._times: Counter[CodePosition] = Counter()

    def note(self, line: CodePosition | None) -> CodePosition | None:
        """Count a step at a line, and return the line; warn once beyond MAX_SILENT_ITERATIONS."""
        if line is not None:
            self._times[line] += 1
            if self._times[line] == MAX_SILENT_ITERATIONS + 1:
                warnings.warn(
                    f"{format_position(line)}: a Python loop of more than {MAX_SILENT_ITERATIONS:,} iterations is "
                    "recorded step by step: d.while_ records a loop as one command",
                    stacklevel=2,
                )
        return line


OMITTED_OPERAND = OmittedOperand()


class CallMemory(Protocol):
    """The interface of a jit function for its calls: the trie of recorded calls, and the plans."""

    root: TrieNode

    def compute_observed(self, call: JitCall, moment: TrieNode, slot: int) -> TensorStorage:
        """Run the plan up to the suspension point `moment`, and return the storage of the observed value `slot`."""

    def compute_rest(self, call: JitCall, moment: TrieNode) -> None:
        """Run the rest of the plan, up to the end `moment`, and store the results and the updated parameters."""

    def switch_to_recording(self, call: JitCall) -> None:
        """Compute the deferred values command by command, and continue the call as a recorded call."""

    def add_to_trie(self, call: JitCall) -> None:
        """Add the steps of a recorded call to the trie."""

    def note_miss(
        self, call: JitCall, moment: TrieNode, what: str, inputs: Sequence[Any], op: str, attrs: Mapping[str, Any]
    ) -> None:
        """Note the reason for the end of a replay: the step without a match after `moment`."""


class JitCall:
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

    def __init__(self, owner: TensorOwner, eager: EagerExecutor, memory: CallMemory, *, replay: bool) -> None:
        self.owner = owner
        self.eager = eager
        self.memory = memory
        self.since = eager.application_count
        self.path: list[CallStep] = []
        self.moment: TrieNode | None = memory.root if replay and memory.root.children else None
        self.handles: dict[int, ref[EagerTensor]] = {}
        self.stored: dict[int, ref[TensorStorage]] = {}
        self.externals: dict[int, EagerTensor] = {}
        self.numbers: dict[int, Any] = {}
        self.contents_before: dict[Parameter, tuple[TensorStorage, Symbol]] = {}
        self.seen: dict[int, TensorStorage] = {}
        self.next = 0
        self.unrolled = IterationCounter()
        self.changed = False
        self.run: PlannedRun | None = None

    # Actions of the user's function

    def apply(self, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[EagerTensor, ...]:
        """Apply a command: deferred if a recorded call continues in the same way, else computed and recorded."""
        if self.moment is not None:
            child = call_trie.match_latest(self, op, inputs, attrs)
            if child is not None:
                return self._replay_latest(child, inputs)
            child = call_trie.match_command(self, op, inputs, attrs)
            if child is None:
                inputs = self._arrays_to_tensors(inputs)
                child = call_trie.match_command(self, op, inputs, attrs)
            if child is not None:
                return self._replay_step(child, inputs)
            self._end_replay(self.moment, APPLY, inputs, op, attrs)
        inputs = self._arrays_to_tensors(inputs)
        operands = self.eager.operands(inputs)
        results = self.eager.apply(op, operands, attrs)
        specialized, _ = self.eager.find(op, operands, attrs)
        copied_attrs = {key: list(value) if isinstance(value, list) else value for key, value in attrs.items()}
        step = CallStep(
            APPLY,
            self._describe_operands(inputs, operands),
            op,
            copied_attrs,
            repr(attrs),
            specialized.outputs,
            recording=self.eager.recording,
        )
        step.command, step.delicate = specialized, needs_exact_attributes(attrs)
        self._append_step(step, results)
        return results

    def gradients(self, of: EagerTensor, wrt: Sequence[EagerTensor], seed: EagerTensor | None) -> list[EagerTensor]:
        """Return the gradients of `of` with respect to `wrt`, deferred in a replay."""
        inputs = [of, *wrt, seed]
        if self.moment is not None:
            child = call_trie.match_other_step(self, GRADIENTS, inputs)
            if child is not None:
                return list(self._replay_step(child, inputs))
            self._end_replay(self.moment, GRADIENTS, inputs)
        entries = self._describe_operands(inputs)
        at = None if seed is None else self._recorded_value(seed)
        results = gradients(
            self.eager, self._recorded_value(of), [self._recorded_value(one) for one in wrt], at, self.since
        )
        tensors = []
        for held in results:
            held.symbol.held = True
            tensors.append(EagerTensor(self.owner, held.symbol.kind, held.storage, held.symbol))
        kinds = tuple(one._kind for one in wrt)
        self._append_step(CallStep(GRADIENTS, entries, kinds=kinds, recording=self.eager.recording), tensors)
        return tensors

    def update(self, target: Parameter, source: EagerTensor) -> None:
        """Assign the content of `source` to a parameter.

        In a replay the parameter keeps the old content until the end of the call.
        """
        if target not in self.contents_before:
            self.eager.require_open()
            if target._storage is None:
                raise RunError(
                    at_line(f"the content of {target.name!r} is unknown after a failed call: assign d.weights[...]")
                )
            self.contents_before[target] = (target._storage, target.symbol)
        if self.moment is not None:
            child = call_trie.match_other_step(self, UPDATE, [source], target)
            if child is not None:
                self._advance_to(child, [source])
                step = child.step
                assert step is not None
                self._assign_slot(target, step.base)  # the parameter keeps its content until the end of the call
                return
            self._end_replay(self.moment, UPDATE, [source])
        entries = self._describe_operands([source])
        storage = self.eager.pool.store_copy(target._kind, self.storage(source).array)
        target._storage, target._symbol = storage, Symbol(target._kind, True)
        self._append_step(
            CallStep(UPDATE, entries, kinds=(target._kind,), target=target, recording=self.eager.recording), [target]
        )

    def detach(self, tensor: EagerTensor) -> EagerTensor:
        """Return the tensor without gradients, deferred in a replay."""
        if self.moment is not None:
            child = call_trie.match_other_step(self, DETACH, [tensor])
            if child is not None:
                return self._replay_step(child, [tensor])[0]
            self._end_replay(self.moment, DETACH, [tensor])
        entries = self._describe_operands([tensor])
        detached = EagerTensor(self.owner, tensor._kind, self.storage(tensor), Symbol(tensor._kind, True))
        self._append_step(CallStep(DETACH, entries, kinds=(tensor._kind,), recording=self.eager.recording), [detached])
        return detached

    def materialize(self, tensor: EagerTensor) -> TensorStorage:
        """Return the storage of an observed tensor; a deferred value is computed first."""
        slot = tensor._slot
        if tensor._call is not self or slot in self.externals or slot in self.seen:
            return self.storage(tensor)
        if self.moment is not None:
            for child in self.moment.children:
                step = child.step
                assert step is not None
                if step.what is OBSERVE and step.kept[0] == slot:
                    self._advance_to(child, ())
                    found: TensorStorage = self.memory.compute_observed(self, child, slot)
                    tensor._storage = self.seen[slot] = found
                    return found
            self._end_replay(self.moment, OBSERVE, [tensor])
        saved = (slot, *(i for i, storage in self.stored.items() if i != slot and storage() is not None))
        self.path.append(CallStep(OBSERVE, kept=saved, line=user_position()))
        computed: TensorStorage = self.storage(tensor)
        self.seen[slot] = computed
        return computed

    def content_at_start(self, slot: int) -> tuple[TensorStorage, Symbol]:
        """Return the storage and symbol of a tensor from outside at the start of the call."""
        tensor = self.externals[slot]
        held = self.contents_before.get(tensor) if isinstance(tensor, Parameter) else None
        if held is None:
            assert tensor._storage is not None
            held = tensor._storage, tensor.symbol
        return held

    def storage(self, tensor: EagerTensor) -> TensorStorage:
        """Return the storage of a computed tensor. Raises RunError for a tensor of a failed call."""
        if tensor._storage is None:
            raise RunError(at_line("the tensor belongs to a call that failed, and has no content"))
        return tensor._storage

    # End of the call

    def finish_call(self) -> None:
        """Finish the call: compute the deferred values still held by the user, and store the updated parameters."""
        result_slots = tuple(sorted(slot for slot, tensor in self._live_tensors().items() if slot not in self.seen))
        if self.moment is not None:
            for child in self.moment.children:
                step = child.step
                assert step is not None
                if step.what is END and step.kept == result_slots:
                    self._advance_to(child, ())
                    self.memory.compute_rest(self, child)
                    self._close()
                    return
            self._end_replay(self.moment, END, ())
        self.path.append(CallStep(END, kept=result_slots))
        for _, symbol in self.contents_before.values():
            symbol.release_handle()
        self.memory.add_to_trie(self)
        self._close()

    def roll_back(self, error: BaseException) -> None:
        """Restore the parameters after an exception in the function; the user's tensors are computed if possible."""
        try:
            if self.moment is not None and isinstance(error, Exception):
                self.memory.switch_to_recording(self)
        except Exception:  # the user sees the first error; tensors not computed raise RunError on use
            pass
        finally:
            with defer_interrupts():
                for parameter, (storage, symbol) in self.contents_before.items():
                    parameter._storage, parameter._symbol = storage, symbol
                self.moment = None
                self._close()

    def _close(self) -> None:
        """Detach all tensors from the call. Results keep no record for gradients."""
        for tensor in self._live_tensors().values():
            tensor._call = None
            if tensor._storage is not None and not isinstance(tensor, Parameter):
                if tensor._symbol is not None:
                    tensor._symbol.release_handle()
                tensor._symbol = Symbol(tensor._kind, True)
                tensor._symbol.ended = True
        for tensor in (*self.externals.values(), *self.contents_before):
            tensor._call = None
        for table in (self.handles, self.stored, self.externals, self.contents_before, self.seen):
            table.clear()

    def _live_tensors(self) -> dict[int, EagerTensor]:
        """Return the user's tensors made by the call by slot, without parameters."""
        live = ((slot, handle()) for slot, handle in self.handles.items())
        return {slot: tensor for slot, tensor in live if tensor is not None and not isinstance(tensor, Parameter)}

    # Replaying

    def _arrays_to_tensors(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the operands, with arrays converted to tensors from outside."""
        plain = (None.__class__, bool, int, float, np.generic, Tensor)
        if all(isinstance(one, plain) for one in inputs):
            return inputs
        return [one if isinstance(one, plain) else self.eager.tensor_from_array(one) for one in inputs]

    def _replay_latest(self, child: TrieNode, inputs: Sequence[Any]) -> tuple[EagerTensor, ...]:
        """Replay a step matched by `match_latest`, without changed numbers; return the deferred results."""
        step: Any = child.step
        if step.opens:
            for entry, given in zip(step.operands, inputs, strict=True):
                if entry.__class__ is ExternalTensor:
                    self._store_external(entry, given)
        self.path.append(step)
        self.moment = child
        if len(step.kinds) > 1:
            return self._deferred_results(step)
        slot = step.base
        tensor = EagerTensor(self.owner, step.kinds[0], None, None, self, slot)
        self.handles[slot] = ref(tensor)
        return (tensor,)

    def _replay_step(self, child: TrieNode, inputs: Sequence[Any]) -> tuple[EagerTensor, ...]:
        """Replay a matched step and return the deferred results."""
        step = child.step
        assert step is not None
        self._advance_to(child, inputs)
        return self._deferred_results(step)

    def _deferred_results(self, step: CallStep) -> tuple[EagerTensor, ...]:
        """Return the results of a step as deferred tensors."""
        tensors = tuple(
            EagerTensor(self.owner, kind, None, None, self, step.base + i) for i, kind in enumerate(step.kinds)
        )
        self.handles.update((one._slot, ref(one)) for one in tensors)
        return tensors

    def _advance_to(self, child: TrieNode, inputs: Sequence[Any]) -> None:
        """Advance to a matched step: store operands from outside, drop plans invalidated by a changed number."""
        step = child.step
        assert step is not None
        if step.fresh:
            for entry, given in zip(step.operands, inputs, strict=True):
                if entry.__class__ is ExternalTensor or (
                    entry.__class__ is NumberOperand and (entry.varies or given is not entry.value)
                ):
                    self._store_external(entry, given)
        if self.changed:
            self.changed = False
            for end in child.call_ends():
                end.plan = None
        self.path.append(step)
        self.moment = child

    def varies(self, entry: NumberOperand) -> None:
        """Note the first change of a number: the number becomes an input of future plans."""
        self.changed = True

    # Recording

    def _end_replay(self, moment: TrieNode, what: str, inputs: Sequence[Any], op: str = "", attrs: Any = None) -> None:
        """Note the reason for the end of the replay, and switch to recording."""
        self.memory.note_miss(self, moment, what, inputs, op, attrs or {})
        self.memory.switch_to_recording(self)

    def _recorded_value(self, tensor: EagerTensor) -> RecordedValue:
        """Return the symbol and storage of a tensor."""
        return RecordedValue(tensor.symbol, self.storage(tensor))

    def _describe_operands(
        self, inputs: Sequence[Any], operands: Sequence[Any] | None = None
    ) -> tuple[StepOperand, ...]:
        """Return the descriptions of the operands; an operand from outside gets a new slot."""
        entries: list[StepOperand] = []
        positions: dict[int, int] = {}
        for position, (given, operand) in enumerate(zip(inputs, operands or inputs, strict=True)):
            if operand is None or operand is OMITTED:
                entries.append(OMITTED_OPERAND)
            elif isinstance(given, EagerTensor) and given._call is self:
                entries.append(RepeatedOperand(positions[given._slot]) if given._slot in positions else given._slot)
            else:
                entry = self._describe_external(given, operand)
                self._store_external(entry, given)
                if isinstance(given, EagerTensor):
                    positions[given._slot] = position
                entries.append(entry)
        return tuple(entries)

    def _describe_external(self, given: Any, operand: EagerTensor) -> ExternalTensor | NumberOperand:
        """Return the description of an operand from outside, with a new slot."""
        kind, slot = operand._kind, self.next
        self.next += 1
        if isinstance(given, NumberTensor):
            return NumberOperand(kind, slot, given.number)
        if isinstance(given, EagerTensor):
            return ExternalTensor(kind, slot, given if isinstance(given, Parameter) else None)
        return NumberOperand(kind, slot, given)

    def _store_external(self, entry: Any, given: Any) -> None:
        """Store a tensor or number from outside by slot."""
        slot = entry.slot
        if entry.__class__ is NumberOperand:
            self.numbers[slot] = given.number if isinstance(given, NumberTensor) else given
        if isinstance(given, EagerTensor) and (entry.__class__ is ExternalTensor or isinstance(given, NumberTensor)):
            self.externals[slot] = given
            given._call = self
            given._slot = slot

    def _append_step(self, step: CallStep, results: Sequence[EagerTensor]) -> None:
        """Append a recorded step, and number its results."""
        step.base = self.next
        step.line = self.unrolled.note(user_position())
        step.scope = self.owner.prefix
        step.fresh = any(isinstance(entry, ExternalTensor | NumberOperand) for entry in step.operands)
        step.opens = any(isinstance(entry, ExternalTensor) for entry in step.operands)
        self.next += len(results)
        self.path.append(step)
        for slot, tensor in zip(step.result_slots, results, strict=True):
            self._assign_slot(tensor, slot)

    def _assign_slot(self, tensor: EagerTensor, slot: int) -> None:
        """Assign a slot of the call to a tensor."""
        tensor._call = self
        tensor._slot = slot
        self.handles[slot] = ref(tensor)
        if tensor._storage is not None and not isinstance(tensor, Parameter):
            self.stored[slot] = ref(tensor._storage)
