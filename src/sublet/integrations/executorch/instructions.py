"""Semantics of ExecuTorch instructions, inferred from conventions, because files hold no operator schemas.

A kernel's last argument is the returned value. An operator with `out` arguments repeats the returned value before the
last argument: as a tensor, as a list, or as all elements of a list. An operator whose name ends in `_` changes and
returns the first argument. A view of a placed tensor has no instruction: an unwritten value is taken for a view of the
value last written to exactly the same bytes before the first use of the unwritten value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

# Memory effects of an ExecuTorch program, step by step: reads, writes, and names of the same bytes.
#
#     step 3   aten::mul        reads x           writes t
#     step 4   move             t gets name a     from here on, a read of a reads the bytes of t
#     step 5   jump             to step 8, or 6
#
# A program is built from a file or from graph modules; the checks use no further information.


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """The bytes [begin, end) of a numbered memory."""

    memory: int
    begin: int
    end: int

    def __str__(self) -> str:
        return f"bytes {self.begin}-{self.end} of memory {self.memory}"


@dataclass(frozen=True, slots=True)
class MethodTensor:
    """A tensor, the tensor's own bytes, and the contract with the caller.

    place      None for a constant, for a tensor bound by the caller, and for a mere name of another tensor's bytes
    given      True if the content exists when the program begins: an input, a constant, a state
    kept       True if the content must exist when the program ends: an output, a state
    alignment  the required alignment of the first byte
    family     a number shared by tensors deliberately overlapped by the compiler; -1 without family
    """

    name: str
    nbytes: int
    place: ByteRange | None
    given: bool = False
    kept: bool = False
    family: int = -1
    alignment: int = 1


@dataclass(frozen=True, slots=True)
class MethodStep:
    """The effects of one step, reads before writes. Tensors are positions.

    fills   tensors written in part, with the remaining content kept
    begins  tensors whose content dies, before being filled
    moves   (source, name): from here on, the name is bound to the source's bytes
    views   (base, view): the view, which has a place, has the content of the base
    then    the possible successors
    """

    what: str
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    fills: tuple[int, ...] = ()
    begins: tuple[int, ...] = ()
    moves: tuple[tuple[int, int], ...] = ()
    views: tuple[tuple[int, int], ...] = ()
    then: tuple[int, ...] = ()


@dataclass(frozen=True)
class MethodProgram:
    """A method: tensors, steps, and the sizes of the memories by number, in bytes."""

    name: str
    tensors: tuple[MethodTensor, ...]
    steps: tuple[MethodStep, ...]
    memories: dict[int, int] = field(default_factory=dict)

    def basic_blocks(self) -> list[range]:
        """Return the basic blocks, as ranges of steps."""
        heads = {0}
        for at, step in enumerate(self.steps):
            if step.then != (at + 1,):
                heads.update((at + 1, *step.then))
        begins = sorted(head for head in heads if head < len(self.steps))
        return [range(begin, end) for begin, end in zip(begins, [*begins[1:], len(self.steps)], strict=True)]


COPY_INDEX, VIEW = "executorch_prim::et_copy_index", "executorch_prim::et_view"


@dataclass(frozen=True, slots=True)
class MethodValue:
    """A value of a method: a tensor, a list of values, or a value without planned memory.

    nbytes     the bytes of a tensor; None for a list or scalar
    place      the planned bytes
    constant   True if the file holds the content, and no instruction writes the value
    initial    True if the file holds the initial content, kept from run to run
    items      the elements of a list
    truth      the content of a Boolean
    """

    name: str
    nbytes: int | None = None
    place: ByteRange | None = None
    constant: bool = False
    initial: bool = False
    items: tuple[int, ...] = ()
    truth: bool | None = None
    alignment: int = 1


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A call of an operator."""

    operator: str
    arguments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DelegateCall:
    """A call of a backend: first the values read, then the values written; the file does not mark the border."""

    arguments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ValueMove:
    """A move of `source` to `target`; for tensors, the target becomes a name of the source's bytes."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class JumpIfFalse:
    """A jump to instruction `to` if the value is false."""

    value: int
    to: int


@dataclass(frozen=True, slots=True)
class Free:
    """A release of memory allocated by the runtime."""

    value: int


Instruction = KernelCall | DelegateCall | ValueMove | JumpIfFalse | Free


@dataclass
class ExecutorchMethod:
    """A method as stored in the file."""

    name: str
    values: Sequence[MethodValue]
    instructions: Sequence[Instruction]
    inputs: Sequence[int]
    outputs: Sequence[int]
    memories: dict[int, int]
    _written: dict[int, list[int]] = field(default_factory=dict)
    _first_use: dict[int, int] = field(default_factory=dict)

    def as_steps(self) -> MethodProgram:
        """Return the method as steps: first the caller writes the inputs, last the outputs are read."""
        steps = [MethodStep("the caller passes the inputs", writes=self._tensors_among(self.inputs))]
        self._record_uses(0, steps[0])
        for at, instruction in enumerate(self.instructions, 1):
            steps.append(self._step_of(instruction))
            self._record_uses(at, steps[-1])
        states = self._state_values(steps)
        at_place: dict[tuple[ByteRange, int], list[int]] = {}
        for number, value in enumerate(self.values):
            if value.nbytes and value.place is not None and (number in self._written or value.initial):
                at_place.setdefault((value.place, value.nbytes), []).append(number)
        for number, value in enumerate(self.values):
            if value.nbytes and value.place is not None and number not in self._written and number not in states:
                self._add_view(steps, number, at_place.get((value.place, value.nbytes), []))
        tensors = tuple(self._program_tensor(number, number in states) for number in range(len(self.values)))
        jumps = {at: each.to + 1 for at, each in enumerate(self.instructions, 1) if isinstance(each, JumpIfFalse)}
        return MethodProgram(
            self.name, tensors, tuple(_link_steps(steps, jumps, self._constant_jumps())), self.memories
        )

    def _program_tensor(self, number: int, state: bool) -> MethodTensor:
        value = self.values[number]
        given = state or value.constant or not value.nbytes
        kept = state or number in self.outputs
        return MethodTensor(value.name, value.nbytes or 0, value.place, given, kept, alignment=value.alignment)

    def _tensors_among(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return the tensors among the values, including tensors in lists."""
        members = (n for number in numbers for n in (number, *self.values[number].items))
        return tuple(dict.fromkeys(n for n in members if self.values[n].nbytes is not None))

    def _step_of(self, instruction: Instruction) -> MethodStep:
        match instruction:
            case KernelCall(operator, arguments):
                return self._kernel_step(operator, arguments)
            case DelegateCall(arguments):
                tensors = self._tensors_among(arguments)
                new = next(
                    (k for k in range(len(tensors)) if not any(map(self._has_content, tensors[k:]))), len(tensors)
                )
                return MethodStep("a delegate", reads=tensors[:new], writes=tensors[new:])
            case ValueMove(source, target) if self._tensors_among([source]) and self._tensors_among([target]):
                return MethodStep("move", moves=((source, target),))
            case JumpIfFalse(value, _):
                return MethodStep("jump", reads=self._tensors_among([value]))
        return MethodStep("free")

    def _has_content(self, number: int) -> bool:
        """True if a tensor has content at this point: written by an earlier instruction, or stored in the file."""
        return number in self._written or self.values[number].constant or self.values[number].initial

    def _kernel_step(self, operator: str, arguments: tuple[int, ...]) -> MethodStep:
        """Return the step of an operator call, by the conventions in the module docstring."""
        if operator.startswith(COPY_INDEX) and len(arguments) > 1:
            return MethodStep(
                operator, reads=self._tensors_among(arguments[1:]), fills=self._tensors_among(arguments[:1])
            )
        if operator.startswith(VIEW) and len(arguments) == 3:
            return MethodStep(operator, moves=((arguments[0], arguments[2]),))
        written = self._tensors_among(arguments[-1:])
        if not written:
            return MethodStep(operator, reads=self._tensors_among(arguments))
        name = operator.partition(".")[0]
        if name.endswith("_"):
            reads = arguments[1:-1] if name.endswith("::copy_") else arguments[:-1]
            return MethodStep(operator, reads=self._tensors_among(reads), writes=written)
        before = arguments[:-1]
        for outs in {1, len(written)}:
            if self._tensors_among(before[len(before) - outs :]) == written:
                return MethodStep(operator, reads=self._tensors_among(before[: len(before) - outs]), writes=written)
        return MethodStep(operator, reads=self._tensors_among(before), writes=written)

    def _record_uses(self, at: int, step: MethodStep) -> None:
        """Record the first use and the writes of the values of a step."""
        moved = [number for pair in step.moves for number in pair]
        for number in (*step.reads, *step.writes, *step.fills, *moved):
            self._first_use.setdefault(number, at)
        for number in (*step.writes, *step.fills, *(target for _, target in step.moves)):
            self._written.setdefault(number, []).append(at)

    def _state_values(self, steps: Sequence[MethodStep]) -> set[int]:
        """Return the values kept from run to run: initial values, and values read and then only changed in place."""
        found = {number for number, value in enumerate(self.values) if value.initial}
        for number, writes in self._written.items():
            changed = all(
                steps[at].what.partition(".")[0].endswith("_") and number in steps[at].writes for at in writes
            )
            if changed and number in steps[self._first_use[number]].reads and number not in self.inputs:
                found.add(number)
        return found

    def _add_view(self, steps: list[MethodStep], view: int, there: Sequence[int]) -> None:
        """Make an unwritten value a view of the value last written to the same bytes before the first use."""
        first, last, base = self._first_use.get(view, 0), -1, -1
        for number in there[: bisect_left(there, view)]:
            several = self._written.get(number, [])
            before = bisect_left(several, first)
            at = several[before - 1] if before else 0 if self.values[number].initial else -1
            if at > last:
                last, base = at, number
        if base < 0:
            return
        for at in [at for at in self._written.get(base, ()) if at < first] or [0]:
            steps[at] = replace(steps[at], views=(*steps[at].views, (base, view)))

    def _constant_jumps(self) -> dict[int, bool]:
        """Return the truth of each jump, by step, whose condition is in the file and never changed."""
        changed = set(self.inputs)
        for each in self.instructions:
            changed.update(each.arguments if isinstance(each, KernelCall | DelegateCall) else ())
            changed.update((each.target,) if isinstance(each, ValueMove) else ())
        return {
            at: truth
            for at, each in enumerate(self.instructions, 1)
            if isinstance(each, JumpIfFalse)
            and (truth := self.values[each.value].truth) is not None
            and each.value not in changed
        }


def _link_steps(steps: Sequence[MethodStep], jumps: dict[int, int], sure: dict[int, bool]) -> Iterator[MethodStep]:
    """Yield the steps with successors. A tensor filled by a loop begins at the loop entry, not in every iteration."""
    begins: dict[int, list[int]] = {}
    loops = sorted(((at - to, to, at) for at, to in jumps.items() if to <= at), key=lambda loop: loop)
    for at, step in enumerate(steps):
        for number in step.fills:
            head = next((to for _, to, last in loops if to <= at <= last), at)
            begins.setdefault(head, []).append(number)
    entry, body = [], []
    for at in range(len(steps) + 1):
        entry.append(at + sum(head < at for head in begins))
        body.append(entry[at] + (at in begins))
    for at, step in enumerate(steps):
        if at in begins:
            yield MethodStep("a loop begins", begins=tuple(begins[at]), then=(body[at],))
        then = [entry[at + 1]]
        if at in jumps:
            target = (entry if jumps[at] > at else body)[jumps[at]]
            then = [*then, target] if at not in sure else then if sure[at] else [target]
        yield replace(step, then=tuple(dict.fromkeys(then)))
