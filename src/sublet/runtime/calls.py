"""Building blocks of calls: the no-op, a sequence of calls, and storing of a content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sublet.base.errors import KernelError
from sublet.base.tensor import NUMPY, Spec, TensorSpec
from sublet.runtime.dtypes import is_packed, pack
from sublet.runtime.kernel import Call, Operand, UnplannedCell


def no_op() -> None:
    """Return without effect: the call of a step without work."""


class CallSequence:
    """A sequence of calls as a single call.

    `reached` is the number of the call that raised in the latest run, None if none raised.
    """

    __slots__ = ("calls", "reached")

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = list(calls)
        self.reached: int | None = None

    def __call__(self) -> None:
        self.reached, number = None, 0
        try:
            for number, call in enumerate(self.calls):  # noqa: B007
                call()
        except BaseException:
            self.reached = number
            raise


class RowCalls(CallSequence):
    """The calls of the rows of a node, which may merge with the calls of other nodes one by one."""

    __slots__ = ()


def sequence_calls(calls: Sequence[Call]) -> Call:
    """Return one call for several; no-ops are dropped."""
    present = [call for call in calls if call is not no_op]
    return present[0] if len(present) == 1 else CallSequence(present)


def store(content: Any, to: Operand, what: object = "a value", spec: Spec | None = None) -> None:
    """Write a computed content to an operand; elements of `spec` smaller than a byte are packed.

    Raises KernelError, naming the value `what`, if type or shape differ from the plan.
    """
    if isinstance(to, UnplannedCell):
        to.content = content
        return
    if not isinstance(to, np.ndarray):  # a tensor on a device: type and shape are as planned, nothing to check
        to[...] = content
        return
    array, shape, dtype = np.asarray(content), to.shape, to.dtype
    shared = spec if isinstance(spec, TensorSpec) and is_packed(spec) else None
    if shared is not None:
        shape, dtype = shared.shape, NUMPY[shared.dtype]
    if array.shape != shape or array.dtype != dtype:
        found, planned = (f"{kind}{list(extents)}" for kind, extents in ((array.dtype, array.shape), (dtype, shape)))
        raise KernelError(f"{what} is {found}, expected {planned} as planned")
    to[...] = array if shared is None else pack(array, shared)
