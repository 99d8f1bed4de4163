"""Loop invariants of ONNX loops, found by optimistic guesses: constants and types of the loop-carried values.

The first guess: a carried value with a constant initial value keeps the constant in every iteration, and any further
carried value keeps the initial type. The body is converted under the guess, contradicted guesses are weakened, and the
body is converted again until the guess holds. By induction, the guess then holds in every iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sublet.base.errors import ModelError
from sublet.integrations.onnx.reader.conversion_state import GraphConversion, ImportState, KnownValue
from sublet.integrations.onnx.reader.types import TensorType, Type, merge_types
from sublet.ir.graph import Graph, Node, Value, While

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class CarryGuess:
    """A guess about one loop-carried value: constantly `init` if `constant`, else of `type` in every iteration.

    `change` says how the first update contradicted the initial type; "" for none.
    """

    init: KnownValue
    type: Type
    constant: bool
    change: str = ""

    @classmethod
    def strongest(cls, init: KnownValue) -> CarryGuess:
        """Return the strongest guess for the initial value."""
        return cls(init, init.type, init.value.literal is not None)

    def body_value(self, program: ImportState, base: str, loop: str) -> KnownValue:
        """Return the value read by the body: the constant, or a new body parameter."""
        if self.constant:
            return self.init
        changes = f"the shape may change between iterations of {loop!r}: {self.change}"
        return program.fresh(base, self.type, self.init.unplannable_reason or changes)

    def weaken_for(self, update: KnownValue) -> CarryGuess:
        """Return the strongest weaker guess consistent with `update`; the same guess if already consistent."""
        if not self.constant:
            merged = merge_types([self.type, update.type])
            how = "" if merged == self.type else update.unplannable_reason or f"{self.type} becomes {update.type}"
            return replace(self, type=merged, change=self.change or how)
        return self if _are_equal_constants(self.init, update) else replace(self, constant=False)


def _are_equal_constants(a: KnownValue, b: KnownValue) -> bool:
    """True if both values are one value, or small constants with equal elements."""
    if a.value is b.value:
        return True
    if a.weight is None or b.weight is None or a.weight.spec != b.weight.spec or not b.weight.is_small:
        return False
    return bool(np.array_equal(a.weight.array(), b.weight.array()))


@dataclass(frozen=True)
class ConvertedBody:
    """A body converted under a guess: parameters and updates of all carried values, slices, rows and nodes."""

    counter: KnownValue
    parameters: tuple[KnownValue, ...]
    slices: tuple[KnownValue, ...]
    updates: tuple[KnownValue, ...]
    rows: tuple[KnownValue, ...]
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class RowStacking:
    """The stacking of a loop's rows: the axes, the directions, and the trip count, None if unknown."""

    axes: tuple[int, ...]
    reversed: tuple[bool, ...]
    trip: int | None

    def stacked_type(self, row: Type, axis: int) -> Type:
        """Return the type of the stacked output of one row."""
        if not isinstance(row, TensorType) or row.dims is None:
            return TensorType(row.elem) if isinstance(row, TensorType) else None
        return TensorType(row.elem, (*row.dims[:axis], self.trip, *row.dims[axis:]))


def find_invariants(
    program: ImportState, carries: Sequence[CarryGuess], attempt: Callable[[Sequence[CarryGuess]], ConvertedBody]
) -> tuple[list[CarryGuess], ConvertedBody]:
    """Return the strongest guess consistent with the body, and the body converted under the guess.

    `attempt` converts the body under a guess. Raises ModelError when the body is malformed under every guess.
    """
    guess = list(carries)
    while True:
        mark = program.mark
        try:
            result = attempt(guess)
            weaker = [carry.weaken_for(update) for carry, update in zip(guess, result.updates, strict=True)]
        except ModelError:
            weaker = [replace(carry, constant=False) for carry in guess]
            if weaker == guess:
                raise
        else:
            if weaker == guess:
                return guess, result
        program.rewind(mark)
        guess = weaker


@dataclass(frozen=True)
class SettledLoop:
    """A loop with established invariants, ready to become a `While`.

    `prefix` computes `condition` before each iteration.
    """

    node: onnx.NodeProto
    name: str
    carries: Sequence[CarryGuess]
    converted_body: ConvertedBody
    stacking: RowStacking
    prefix: tuple[Node, ...]
    condition: Value
    sequences: tuple[KnownValue, ...] = ()
    slice_axes: tuple[int, ...] = ()
    slice_reversed: tuple[bool, ...] = ()


def add_while(frame: GraphConversion, loop: SettledLoop, finals: Sequence[str], stacked: Sequence[str]) -> None:
    """Add the `While` to `frame`. `finals` and `stacked` name the outputs in the file, "" for an unnamed output.

    A carried value equal to a constant in every iteration is no parameter; readers use the constant.
    """
    for name, carry in zip(finals, loop.carries, strict=True):
        if carry.constant and name:
            frame.scope[name] = carry.init
    moving = [i for i, carry in enumerate(loop.carries) if not carry.constant]
    current, rows = loop.converted_body, loop.stacking
    outputs = [
        frame.define(finals[i], loop.carries[i].type, current.parameters[i].unplannable_reason) if finals[i] else None
        for i in moving
    ]
    unknown = f"the trip count of {loop.name!r} depends on data"
    for name, row, axis in zip(stacked, current.rows, rows.axes, strict=True):
        outputs.append(
            frame.define(name, rows.stacked_type(row.type, axis), row.unplannable_reason or unknown) if name else None
        )
    parameters = [current.parameters[i] for i in moving]
    body = Graph(
        "body",
        tuple(known.value for known in (current.counter, *parameters, *current.slices)),
        (*loop.prefix, *current.nodes),
        tuple(known.value for known in (*(current.updates[i] for i in moving), *current.rows)),
    )
    inits = [loop.carries[i].init for i in moving]
    frame.nodes.append(
        While(
            loop.name,
            "while",
            tuple(known.value for known in (*inits, *loop.sequences)),
            tuple(outputs),
            body=body,
            condition=loop.condition,
            check=len(loop.prefix),
            carried=len(moving),
            slice_axes=loop.slice_axes,
            slice_reversed=loop.slice_reversed,
            row_axes=rows.axes,
            row_reversed=rows.reversed,
        )
    )
