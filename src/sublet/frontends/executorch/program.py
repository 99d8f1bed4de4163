"""What a program of ExecuTorch does to memory, step by step: who reads, who writes, who becomes a name of whose bytes.

    step 3   aten::mul        reads x           writes t
    step 4   move             a becomes t       from here on whoever reads a reads the bytes of t
    step 5   jump             to step 8, or 6

It is made from a file, or from the graphs that are planned; the judges know nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Bytes:
    """Bytes [begin, end) of a memory, which has a number."""

    memory: int
    begin: int
    end: int

    def __str__(self) -> str:
        return f"bytes {self.begin}-{self.end} of memory {self.memory}"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor, where its own bytes lie, and what it is to who calls the program.

    place      None for a constant, for what the caller gives a place, and for what is only a name of others
    given      whether its content is there when the program begins: an input, a constant, a state
    kept       whether its content must be there when the program ends: an output, a state
    alignment  what its first byte is to be a multiple of
    family     tensors that the compiler has put into one another on purpose have one, others none
    """

    name: str
    nbytes: int
    place: Bytes | None
    given: bool = False
    kept: bool = False
    family: int = -1
    alignment: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """What happens at once; first it reads, then it writes. Tensors are positions.

    fills   written in part: what they held before stays
    begins  what they held is not needed any more: they will be filled
    moves   (source, name): the name stands for the source's bytes from here on
    views   (base, view): the view, which has a place, holds what its base holds
    then    the steps that may come next
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
class Program:
    """A method: its tensors, its steps from the first on, and the sizes of the memories by their numbers."""

    name: str
    tensors: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    memories: dict[int, int] = field(default_factory=dict)

    def blocks(self) -> list[range]:
        """Stretches of steps that run through: only the first is come to from elsewhere, only the last leaves."""
        heads = {0}
        for at, step in enumerate(self.steps):
            if step.then != (at + 1,):
                heads.update((at + 1, *step.then))
        begins = sorted(head for head in heads if head < len(self.steps))
        return [range(begin, end) for begin, end in zip(begins, [*begins[1:], len(self.steps)], strict=True)]
