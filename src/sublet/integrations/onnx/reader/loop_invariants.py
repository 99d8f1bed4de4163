"""Loop invariants of ONNX loops, found by optimistic guesses: constants and types of the loop-carried values.

The first guess: a carried value with a constant initial value keeps the constant in every iteration, and any further
carried value keeps the initial type. The body is converted under the guess, contradicted guesses are weakened, and the
body is converted again until the guess holds. By induction, the guess then holds in every iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.base.errors import ModelError
from sublet.base.extents import Extent, is_at_least_zero
from sublet.integrations.onnx.reader.conversion_state import GraphConversion, ImportState, KnownValue
from sublet.integrations.onnx.reader.types import TensorType, Type, merge_types
from sublet.ir.graph import Graph, Node, Value, While

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class CarryGuess:
    """A guess about one loop-carried value: constantly `init` if `constant`, else of `type` in every iteration.

    `change` says how the first update contradicted the initial type; "" for none. With `growth`, an axis and a number,
    each iteration adds so many elements along the axis: the extent of `type` there contains the iteration.
    """

    init: KnownValue
    type: Type
    constant: bool
    change: str = ""
    growth: tuple[int, int] | None = None

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

    def weakest(self) -> CarryGuess:
        """Return the guess of the initial type, for a body that does not fit a stronger guess."""
        change = self.change or ("" if self.growth is None else f"the body fits no growth of {self.type}")
        type = self.type if self.growth is None else _with_more_elements(self.init.type, self.growth[0], None)
        return replace(self, type=type, constant=False, change=change, growth=None)

    def weaken_for(self, update: KnownValue, iteration: Extent | str) -> CarryGuess:
        """Return the strongest weaker guess consistent with `update`; the same guess if already consistent.

        `iteration` is the number of the iteration as an extent, or a text with the condition for values that grow.
        """
        if self.growth is not None:
            if update.type == _with_more_elements(self.type, *self.growth):
                return self
            how = f"{self.type} becomes {update.type}"
            open_type = _with_more_elements(self.init.type, self.growth[0], None)
            return replace(self, type=merge_types([open_type, update.type]), change=how, growth=None)
        if not self.constant:
            growth = None if self.change else _growth_of(self.type, update.type, iteration)
            if isinstance(iteration, Extent) and growth is not None:
                axis, rate = growth
                return replace(self, type=_with_more_elements(self.type, axis, rate * iteration), growth=growth)
            merged = merge_types([self.type, update.type])
            how = "" if merged == self.type else update.unplannable_reason or f"{self.type} becomes {update.type}"
            how += f"; {iteration}" if growth is not None else ""
            return replace(self, type=merged, change=self.change or how)
        return self if _are_equal_constants(self.init, update) else replace(self, constant=False)


def _growth_of(before: Type, after: Type, iteration: Extent | str) -> tuple[int, int] | None:
    """Return the only axis with more elements in `after` than in `before`, and the number of new elements.

    None for types that differ otherwise, and for a number of elements that depends on the iteration.
    """
    if not isinstance(before, TensorType) or not isinstance(after, TensorType) or before.elem != after.elem:
        return None
    if before.dims is None or after.dims is None or len(before.dims) != len(after.dims):
        return None
    pairs = enumerate(zip(before.dims, after.dims, strict=True))
    changed = [(axis, old, new) for axis, (old, new) in pairs if old != new]
    axis, old, new = changed[0] if len(changed) == 1 else (0, None, None)
    if old is None or new is None:
        return None
    rate = new - old
    own = iteration.dimensions if isinstance(iteration, Extent) else frozenset()
    depends = isinstance(rate, Extent) and not own.isdisjoint(rate.dimensions)
    return None if depends or not is_at_least_zero(rate) else (axis, rate)


def _with_more_elements(type: Type, axis: int, added: Any) -> Type:
    """Return a type with more elements along an axis; with an open extent there for None."""
    assert isinstance(type, TensorType)
    assert type.dims is not None
    extent = type.dims[axis]
    new = None if added is None or extent is None else extent + added
    return TensorType(type.elem, (*type.dims[:axis], new, *type.dims[axis + 1 :]))


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
    program: ImportState,
    carries: Sequence[CarryGuess],
    attempt: Callable[[Sequence[CarryGuess]], ConvertedBody],
    iteration: Extent | str = "",
) -> tuple[list[CarryGuess], ConvertedBody]:
    """Return the strongest guess consistent with the body, and the body converted under the guess.

    `attempt` converts the body under a guess. `iteration` is the number of the iteration as an extent, or a text
    with the condition for values that grow. Raises ModelError when the body is malformed under every guess.
    """
    guess = list(carries)
    while True:
        mark = program.mark
        try:
            result = attempt(guess)
            weaker = [carry.weaken_for(update, iteration) for carry, update in zip(guess, result.updates, strict=True)]
        except ModelError:
            weaker = [carry.weakest() for carry in guess]
            if weaker == guess:
                raise
        else:
            if weaker == guess:
                return guess, result
        program.rewind(mark)
        guess = weaker


def _final_type(carry: CarryGuess, parameter: KnownValue, trip: int | None, unknown: str) -> tuple[Type, str]:
    """Return the type of the final content of a carried value, and the reason for a part that stays open."""
    if carry.growth is None:
        return carry.type, parameter.unplannable_reason
    axis, rate = carry.growth
    return _with_more_elements(carry.init.type, axis, None if trip is None else rate * trip), unknown


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
    unknown = f"the trip count of {loop.name!r} depends on data"
    outputs = [
        frame.define(finals[i], *_final_type(loop.carries[i], current.parameters[i], rows.trip, unknown))
        if finals[i]
        else None
        for i in moving
    ]
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
