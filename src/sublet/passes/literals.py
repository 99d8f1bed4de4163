"""Conversion of literals to NumPy arrays and back, and evaluation of commands on known elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sublet.base.numpy_types import NUMPY
from sublet.base.tensor import INTEGERS, DType, TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.emitter import CONSTANT_ELEMENTS
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import PREFIX

Elements = tuple[int | float | bool, ...]

EXACT_TYPES = frozenset((DType.BOOL, *INTEGERS, DType.F32, DType.F64))
"""Types for which NumPy computes exactly the elements defined by the commands."""


def is_filled_with(value: Value, number: float) -> bool:
    """True if the value is a literal with `number` in every element. 0.0 and -0.0 are equal."""
    return value.literal is not None and all(element == number for element in value.literal) and bool(value.literal)


def evaluate_node(node: Node, known: Mapping[Value, Elements]) -> list[Elements] | None:
    """Return the elements of each output of a node, or None.

    None means: an input is unknown, a type is computed inexactly by NumPy, or an output has too many elements.
    """
    record = COMMANDS.get(node.op.removeprefix(PREFIX)) if node.op.startswith(PREFIX) else None
    if record is None or not record.pure or node.scratch is not None or None in node.inputs:
        return None
    if not all(value in known for value in node.uses) or not all(_is_small(value) for value in node.outputs):
        return None
    arrays = [_to_array(value, known[value]) for value in node.uses if value.spec.dtype in EXACT_TYPES]
    if len(arrays) != len(node.inputs):
        return None
    with np.errstate(all="ignore"):
        result = record.compute(*arrays, **node.attrs)
    results: Sequence[Any] = result if isinstance(result, tuple) else (result,)
    return [_to_elements(array, value) for array, value in zip(results, node.outputs, strict=True) if value is not None]


def _is_small(value: Value | None) -> bool:
    spec = value.spec if value is not None else None
    return isinstance(spec, TensorSpec) and spec.dtype in EXACT_TYPES and spec.size <= CONSTANT_ELEMENTS


def _to_array(value: Value, elements: Elements) -> Any:
    assert isinstance(value.spec, TensorSpec)
    return np.array(elements, NUMPY[value.spec.dtype]).reshape(value.spec.shape)


def _to_elements(array: Any, value: Value) -> Elements:
    assert isinstance(value.spec, TensorSpec)
    return tuple(np.asarray(array).astype(NUMPY[value.spec.dtype]).reshape(-1).tolist())
