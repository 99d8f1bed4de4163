"""What a command says to inputs that it does not take."""

from __future__ import annotations

from typing import Any

import pytest

from sublet.errors import SpecError
from sublet.ir.emitter import Emitter
from sublet.ir.graph import Graph, Value
from sublet.tensor import DType, TensorSpec


def refused(op: str, shapes: list[str], attrs: dict[str, Any], message: str) -> None:
    """Assert that the command does not take such inputs, and says why. "_" is an omitted input."""
    inputs = [None if text == "_" else Value(f"x{i}", _spec(text)) for i, text in enumerate(shapes)]
    emit = Emitter.of(Graph("wrong", tuple(v for v in inputs if v is not None), (), ()))
    with pytest.raises(SpecError, match=message):
        emit.several(f"nn.{op}", *inputs, **attrs)


def _spec(text: str) -> TensorSpec:
    dtype, _, shape = text.rstrip("]").partition("[")
    return TensorSpec(DType.parse(dtype), tuple(int(extent) for extent in shape.split(",") if extent))
