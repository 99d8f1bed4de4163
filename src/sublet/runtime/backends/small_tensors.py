"""Immediate arithmetic and comparison of small tensors: NumPy's functions start faster than ATen's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sublet.base.tensor import DType
from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import PREFIX, spec_of
from sublet.runtime.kernel import Array, Call, Kernel, Operand

MOST_ELEMENTS = 4096
"""Most elements of a small tensor; with more elements, the start time of a function does not matter."""

FLOATING = (DType.F32, DType.F64)
COUNTING = (DType.I32, DType.I64)
EVERY = (*FLOATING, *COUNTING)

FUNCTIONS: Mapping[str, tuple[str, tuple[DType, ...]]] = {
    "add": ("add", EVERY),
    "sub": ("subtract", EVERY),
    "mul": ("multiply", EVERY),
    "div": ("divide", FLOATING),
    "neg": ("negative", EVERY),
    "abs": ("absolute", EVERY),
    "square": ("square", EVERY),
    "sqrt": ("sqrt", FLOATING),
    "equal": ("equal", EVERY),
    "not_equal": ("not_equal", EVERY),
    "less": ("less", EVERY),
    "less_equal": ("less_equal", EVERY),
    "greater": ("greater", EVERY),
    "greater_equal": ("greater_equal", EVERY),
}
"""Commands with the same result bits in every library: NumPy's function, and its types."""


class SmallTensors:
    """The backend of small tensors, for graphs computing at once."""

    name = "numpy"

    def __init__(self) -> None:
        quiet = copy_context()  # a context without NumPy's warnings of overflow and NaN
        quiet.run(np.seterr, all="ignore")
        self._run = quiet.run

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return NumPy's function for small tensors of one type; None otherwise."""
        function, types = FUNCTIONS.get(node.op.removeprefix(PREFIX), ("", ()))
        if not function or None in node.inputs or not node.plannable:
            return None
        specs = [spec_of(value) for value in (*node.uses, *node.defs)]
        fits = all(0 < spec.size <= MOST_ELEMENTS for spec in specs)
        same = len({spec_of(value).dtype for value in node.uses}) == 1 and specs[0].dtype in types
        return _Function(partial(self._run, getattr(np, function))) if fits and same else None


def has_context_errors() -> bool:
    """True if NumPy keeps the error state in a context variable, as from version 2.0 on."""
    return int(np.__version__.split(".")[0]) >= 2


@dataclass(frozen=True)
class _Function:
    """A kernel calling a function of NumPy."""

    function: Callable[..., Any]
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        return partial(self.function, *inputs, outputs[0])
