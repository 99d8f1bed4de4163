"""Inputs and outputs over ranges: the shapes of a call, windows of caches, and contents that follow from the point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sublet.base.arrays import is_packed
from sublet.base.boxes import Range
from sublet.base.errors import RunError
from sublet.base.extents import Extent, extent_at
from sublet.base.formatting import known_names, printable
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.ir.graph import Graph, Value
from sublet.ops import lookup
from sublet.runtime.kernel import Array


@dataclass(frozen=True)
class Window:
    """The first rows of a buffer: an input that a run appends rows to, in place.

    before, after  the input and the output as the caller sees them: the rows with a content
    axis, room     the axis of the rows, and the rows of the buffer
    """

    before: Value
    after: Value
    axis: int
    room: int

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the buffer around a window of a shape."""
        return (*shape[: self.axis], self.room, *shape[self.axis + 1 :])

    def rows_of(self, buffer: Array, shape: tuple[int, ...]) -> Array:
        """Return the window of a shape as a view of the buffer."""
        rows: Array = buffer[(*(slice(None),) * self.axis, slice(shape[self.axis]))]
        return rows


def windows_of(graph: Graph) -> dict[Value, Window]:
    """Return the windows of a graph over ranges, by the input that is the whole buffer."""
    writers = {value: node for node in graph.nodes for value in node.defs}
    windows: dict[Value, Window] = {}
    for old, new in graph.updates:
        node = writers.get(new)
        found = lookup(node.op).appends(node) if node is not None else None
        if node is not None and found is not None and (node.inputs[0], node.outputs[0]) == (old, new):
            before, after = (
                _with_extent(value, found.axis, rows) for value, rows in ((old, found.before), (new, found.after))
            )
            assert isinstance(old.spec, TensorSpec)
            windows[old] = Window(before, after, found.axis, old.spec.shape[found.axis])
    return windows


def _with_extent(value: Value, axis: int, extent: int) -> Value:
    """Return a value with another extent along an axis."""
    assert isinstance(value.spec, TensorSpec)
    shape = (*value.spec.shape[:axis], extent, *value.spec.shape[axis + 1 :])
    return replace(value, spec=TensorSpec(value.spec.dtype, shape))


def literal_at(value: Value, point: Mapping[str, int]) -> Array:
    """Return the elements of a value with a literal at a point."""
    assert isinstance(value.spec, TensorSpec)
    elements: Any = value.literal
    return np.array([extent_at(each, point) for each in elements], NUMPY[value.spec.dtype]).reshape(value.spec.shape)


@dataclass(frozen=True)
class ShapeMatcher:
    """The inputs of an executable by name, and the ranges of their dimensions.

    `fixed` are inputs of the file that are constants of the plan, each with a remark for the user.
    """

    inputs: Mapping[str, Value]
    ranges: Mapping[str, Range]
    fixed: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _kinds(self) -> dict[str, int]:
        """The number of the shape of each input among the different shapes."""
        numbers: dict[Any, int] = {}
        specs = {name: value.spec for name, value in self.inputs.items()}
        shapes = {name: spec.shape for name, spec in specs.items() if isinstance(spec, TensorSpec)}
        return {name: numbers.setdefault(shape, len(numbers)) for name, shape in shapes.items()}

    def match(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return the numbers of the dimensions in the shapes of some inputs. Raises RunError for a wrong shape."""
        found: dict[str, tuple[int, str]] = {}
        unknown = sorted(shapes.keys() - self.inputs.keys())
        if unknown and unknown[0] in self.fixed:
            raise RunError(f"input {printable(unknown[0])}: {self.fixed[unknown[0]]}")
        if unknown:
            raise RunError(f"the inputs are {known_names(self.inputs)}; unknown: {known_names(unknown)}")
        matched: set[tuple[Any, ...]] = set()
        for name, shape in shapes.items():
            kind = self._kinds[name], shape
            if kind in matched:  # as the caches of all layers
                continue
            matched.add(kind)
            spec = self.inputs[name].spec
            assert isinstance(spec, TensorSpec)
            if len(shape) != len(spec.shape):
                words = ",".join(_extent_words(each) for each in spec.shape)
                raise RunError(f"{name}: must be {spec.dtype}[{words}], with {len(spec.shape)} axes, not {list(shape)}")
            for axis, (extent, number) in enumerate(zip(spec.shape, shape, strict=True)):
                self._match(extent, number, f"{name}, axis {axis}", found)
        return {name: number for name, (number, _) in found.items()}

    def _match(self, extent: Extent | int, number: int, where: str, found: dict[str, tuple[int, str]]) -> None:
        """Add the number of the dimension of an axis, and the axis, to `found`.

        Raises RunError for an extent that does not fit.
        """
        if not isinstance(extent, Extent):
            if extent != number:
                open_axis = "If the model leaves this axis open, compile with a range for the axis"
                raise RunError(f"{where}: is {number}, but {extent} in the plan. {open_axis}")
            return
        (one,) = extent.dimensions
        own = self.ranges[one.name]
        here = own.number_of(number, where)
        known, first = found.setdefault(one.name, (here, where))
        if known != here:
            raise RunError(f"{where}: is {number}, but {first}, is {own.extent_of(known)}; both are {one.name}")


def _extent_words(extent: Extent | int) -> str:
    """Return the extent of an axis of an input for people: a number, or the name of the dimension."""
    return ", ".join(each.name for each in extent.dimensions) if isinstance(extent, Extent) else str(extent)


def shape_of(content: Any, name: str) -> tuple[int, ...]:
    """Return the shape of an input. Raises RunError for a ragged list."""
    try:
        return tuple(np.shape(content))
    except ValueError as error:
        raise RunError(f"{name}: is no array: {error}") from None


def require_whole_bytes(values: Iterable[Value]) -> None:
    """Raise RunError for a value with several elements in a byte."""
    packed = next((value for value in values if isinstance(value.spec, TensorSpec) and is_packed(value.spec)), None)
    if packed is not None:
        raise RunError(f"ranges of dimensions: {packed} has several elements in a byte; compile for single extents")


def require_state(state: Mapping[str, str], inputs: Mapping[str, Value], outputs: Mapping[str, Value]) -> None:
    """Raise RunError for a state of unknown names, or of tensors of different type or rank."""
    for name, result in state.items():
        what = f"state {printable(name)}={printable(result)}"
        if name not in inputs or result not in outputs:
            raise RunError(f"{what}: the inputs are {known_names(inputs)}; the outputs are {known_names(outputs)}")
        one, other = inputs[name].spec, outputs[result].spec
        assert isinstance(one, TensorSpec)
        assert isinstance(other, TensorSpec)
        if one.dtype is not other.dtype or len(one.shape) != len(other.shape):
            raise RunError(f"{what}: the input is {one}, the output {other}; both must have one type and rank")
