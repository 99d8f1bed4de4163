"""Extents that depend on data, declared by a range: a node of the op `extent.measure` after the node that decides.

A range is declared for a value: `boxes:0=0..100` is the extent of %boxes along axis 0, and `count=1..512` the single
element of the integer tensor %count. The types and contents behind the measurement then have the extent as an
expression, as with the open dimensions of inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.base.extents import Extent
from sublet.base.formatting import known_names, printable
from sublet.base.tensor import DType, Unplannable
from sublet.integrations.onnx.reader.conversion_state import GraphConversion, KnownValue, node_error
from sublet.integrations.onnx.reader.types import ELEMENT_NUMBERS, TensorType, Type
from sublet.ir.graph import Attr, Node
from sublet.ops.op import MEASURE

if TYPE_CHECKING:
    import onnx

    from sublet.integrations.onnx.reader.ranged_shapes import Content

COUNTS = frozenset(ELEMENT_NUMBERS[dtype] for dtype in (DType.I32, DType.I64))
"""The types of an element that is an extent."""


def measure_declared_extents(frame: GraphConversion, node: onnx.NodeProto, types: Sequence[Type]) -> None:
    """Append a measurement for each output with a declared extent; readers of the output then read the measurement.

    Raises ModelError for a declared extent that is known, or that no measurement can find.
    """
    program = frame.program
    for text, type in zip(node.output, types, strict=True):
        axes = {name.rpartition(":")[2]: name for name in program.undecided if name.rpartition(":")[0] == text}
        names = {name: axis for axis, name in axes.items()} | ({text: ""} if text in program.undecided else {})
        if not text or not names:
            continue
        if len(frame.scope.maps) > 1:
            raise node_error(frame, node, f"is in a loop or branch: no range can bound {known_names(names)} there")
        known = frame.scope[text]
        extents = {axis: program.dims[name] for name, axis in names.items()}
        _append_measurement(frame, text, known, _measured_dims(frame, node, text, type, extents))
        program.undecided.difference_update(names)


def is_count(type: Type) -> bool:
    """True for an integer tensor of one element, which may be an extent."""
    if not isinstance(type, TensorType) or type.dims is None:
        return False
    return type.elem in COUNTS and all(each == 1 for each in type.dims)


def _measured_dims(
    frame: GraphConversion, node: onnx.NodeProto, text: str, type: Type, extents: dict[str, Any]
) -> tuple[Any, ...] | Extent:
    """Return the extents of an output with the declared ones; a single extent for a declared content.

    `extents` has the declared extents by the text of the axis, "" for a name without an axis.
    """
    what = f"writes {printable(text)}, which is {type or 'of unknown type'}"
    if not isinstance(type, TensorType) or type.dims is None:
        raise node_error(frame, node, f"{what}: a range can bound the extents of a tensor of known rank")
    open_axes = [axis for axis, extent in enumerate(type.dims) if extent is None]
    if not open_axes and extents.keys() == {""} and is_count(type):
        content: Extent = extents[""]
        return content
    if len(open_axes) == 1 and extents.keys() == {""}:
        extents[str(open_axes[0])] = extents.pop("")
    if extents.keys() != {str(axis) for axis in open_axes}:
        if not open_axes:
            raise node_error(frame, node, f"{what}: no extent depends on data, so no range can bound any")
        wanted = known_names([f"{text}:{axis}" for axis in open_axes])
        given = known_names([f"{text}:{axis}" if axis else text for axis in extents])
        raise node_error(frame, node, f"{what}: expected a range for each of {wanted}, got {given}")
    return tuple(extents[str(axis)] if extent is None else extent for axis, extent in enumerate(type.dims))


def measure_declared_inputs(frame: GraphConversion) -> None:
    """Append a measurement for each input, an integer tensor of one element, that is a declared extent."""
    for name in sorted(frame.program.undecided & frame.scope.keys()):
        known = frame.scope[name]
        if known.weight is None and is_count(known.type):
            _append_measurement(frame, name, known, frame.program.dims[name])
            frame.program.undecided.discard(name)


def _append_measurement(frame: GraphConversion, text: str, known: KnownValue, dims: tuple[Any, ...] | Any) -> None:
    """Append the measurement of an output: of its element if `dims` is an extent, else of its extents."""
    program, source, type = frame.program, known.value, known.type
    assert isinstance(type, TensorType)
    content: Content | None = None
    attrs: dict[str, Attr]
    if isinstance(dims, Extent):
        attrs = {"content": _dimension_of(dims)}
        content = np.full([1] * len(type.dims or ()), dims, dtype=object)
    else:
        is_open = [extent is None for extent in type.dims or ()]
        attrs = {"dims": tuple(_dimension_of(d) if free else "" for d, free in zip(dims, is_open, strict=True))}
        assert isinstance(source.spec, Unplannable)
        source = replace(source, spec=replace(source.spec, dims=dims))
        writer = next(i for i in reversed(range(len(frame.nodes))) if known.value in frame.nodes[i].outputs)
        outputs = tuple(source if value == known.value else value for value in frame.nodes[writer].outputs)
        frame.nodes[writer] = replace(frame.nodes[writer], outputs=outputs)
        type = replace(type, dims=dims)
    name = program.values.fresh(f"{source.name}.measured")
    measured = program.known_value(name, type, "", content)
    title = program.nodes.fresh(f"{source.name}.measure")
    frame.nodes.append(Node(title, MEASURE, (source,), (measured.value,), attrs))
    frame.scope[text] = measured


def _dimension_of(extent: Extent) -> str:
    """Return the name of the dimension of a declared extent."""
    (dimension,) = extent.dimensions
    return dimension.name
