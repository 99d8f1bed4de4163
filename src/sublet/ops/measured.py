"""The op `extent.measure`: an extent that depends on data, measured in each run and bounded by a declared range.

    extent.measure(number)    content="n"         the element of the input is the extent n
    extent.measure(tensor)    dims=("", "n")      the extent of the input along axis 1 is n; "" for a known extent

The output is the input. Only nodes after the measurement have shapes with the extent, because these shapes follow from
the output. A tensor to measure lies outside the plan: its kernel allocates it, and the measurement copies it into the
arena. A run with an extent outside the range fails at the measurement [XLA: bounded dynamic dimensions].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sublet.base.extents import Extent
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.op import MEASURE, Op, Share, register


def _same_bytes(node: Node) -> tuple[Share, ...]:
    """Return the view of a planned input."""
    return (Share(0, 0),) if node.plannable else ()


RECORD = Op(MEASURE, views=_same_bytes, inputs=(1, 1), outputs=(1, 1), movable=True, pure=False)

register("extent", lambda name: RECORD)


def measured_dimensions(graph: Graph) -> set[str]:
    """Return the names of the dimensions that nodes of a graph measure, without those that its inputs tell."""
    measured = {name for node in graph.nodes if node.op == MEASURE for _, name in measured_axes(node)}
    return measured - dimensions_of(graph.inputs)


def dimensions_of(values: Iterable[Value]) -> set[str]:
    """Return the names of the dimensions in the extents of planned values."""
    specs = [value.spec for value in values]
    extents: list[Any] = [extent for spec in specs if isinstance(spec, TensorSpec) for extent in spec.shape]
    return {each.name for extent in extents if isinstance(extent, Extent) for each in extent.dimensions}


def measured_axes(node: Node) -> Iterator[tuple[int | None, str]]:
    """Yield the axes and dimensions measured by a node; axis None for an extent in the content."""
    content: Any = node.attrs.get("content")
    dims: Any = node.attrs.get("dims", ())
    if content:
        yield None, content
    yield from ((axis, name) for axis, name in enumerate(dims) if name)
