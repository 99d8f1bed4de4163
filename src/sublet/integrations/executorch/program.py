"""Memory effects of an ExecuTorch program, step by step: reads, writes, and names of the same bytes.

    step 3   aten::mul        reads x           writes t
    step 4   move             t gets name a     from here on, a read of a reads the bytes of t
    step 5   jump             to step 8, or 6

A program is built from a file or from graph modules; the checks use no further information.
"""

from __future__ import annotations

from dataclasses import dataclass, field


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
