"""Rules of tracing for operators that PyTorch traces to the detriment of memory: resampling, dropout, poolings.

PyTorch traces most resampling operators as index operators, with the indices computed by operators:

    eager                        traced by PyTorch                       traced within `keep_operators`
    upsample_nearest2d           arange, mul, _to_copy, _unsafe_index    upsample_nearest2d
    upsample_nearest2d_backward  new_zeros, _unsafe_index_put            upsample_nearest2d_backward

The index operators are slower, and linear resampling by indices differs in rounding and takes several tensors more.
Where PyTorch traces a graph once more, the gradients of SiLU and Mish become elementary operators. `keep_operators`
keeps these gradients too.

PyTorch traces dropout as one operator. Random operators never run twice, so a result read in the backward pass is saved
beside its mask. With `decompositions`, a program draws the mask alone, and may compute the result again:

    y, mask = native_dropout(x, 0.1)    ->    mask = bernoulli(empty_like(x, dtype=bool), 0.9)
                                              y = native_dropout_backward(x, mask, 1 / 0.9)    # x * mask * scale

The gradient of a pooling takes the image for its shape alone. With `decompositions`, the gradient takes an undefined
tensor, which the result overwrites, and the image is not saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock, get_ident
from typing import Any

import numpy as np

from sublet.base.optional_imports import require
from sublet.base.tensor import NUMPY
from sublet.integrations.torch.dialect import PREFIX, UNREAD_ARGUMENTS
from sublet.integrations.torch.operator_call import find_operator
from sublet.integrations.torch.reader.traced_tensor import dtype_of, torch

RESAMPLING = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d",
)  # fmt: skip
"""The operators with a forward and a backward kernel in PyTorch, and with a trace by index operators."""

ELEMENTARY_GRADIENTS = ("silu_backward", "mish_backward")
"""Operators with a kernel for the CPU that PyTorch may also trace as elementary operators."""

Function = Callable[..., Any]


class _TracingThreads:
    """The threads within `keep_operators`, and the functions of PyTorch replaced meanwhile.

    The functions are replaced for the process. A replaced function calls PyTorch's function in every other thread.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._threads: list[int] = []
        self._replaced: list[tuple[Any, Any, Function | None]] = []

    @property
    def includes_this(self) -> bool:
        """True in a thread within `keep_operators`."""
        return get_ident() in self._threads

    def enter(self) -> None:
        """Add this thread. The first thread replaces the functions."""
        with self._lock:
            if not self._threads:
                self._replace_all()
            self._threads.append(get_ident())

    def leave(self) -> None:
        """Remove this thread. The last thread restores the functions."""
        with self._lock:
            self._threads.remove(get_ident())
            while not self._threads and self._replaced:
                operator, key, function = self._replaced.pop()
                operator.py_kernels.pop(key)
                if function is not None:
                    operator.py_kernels[key] = function
                operator._dispatch_cache.clear()

    def _replace_all(self) -> None:
        """Replace the functions by which PyTorch traces resampling operators, and add those of other gradients.

        A missing function of a resampling operator stays missing.
        """
        keys = torch()._C.DispatchKey
        for name in ELEMENTARY_GRADIENTS:
            operator, key = getattr(torch().ops.aten, name).default, keys.CompositeImplicitAutograd
            self._replace(operator, key, partial(self._trace, _do_not_decompose, partial(operator._op_dk, key), True))
        for name in RESAMPLING:
            packet = getattr(torch().ops.aten, name, None)
            if packet is None:
                continue
            has_symbolic_backward = keys.Meta in getattr(torch().ops.aten, f"{name}_backward").default.py_kernels
            for operator in (packet.default, packet.vec):
                for key in (keys.Autograd, keys.CompositeImplicitAutograd):
                    function = operator.py_kernels.get(key)
                    if function is None:
                        continue
                    keep = partial(_keep_operator, operator) if key == keys.Autograd else _do_not_decompose
                    if operator is packet.vec:
                        keep = partial(_call_with_sizes, packet.default)
                    self._replace(operator, key, partial(self._trace, keep, function, has_symbolic_backward))

    def _replace(self, operator: Any, key: Any, function: Function) -> None:
        """Replace the function of an operator for a dispatch key; remember the function before, if any."""
        self._replaced.append((operator, key, operator.py_kernels.get(key)))
        operator.py_kernels[key] = function
        operator._dispatch_cache.clear()

    def _trace(self, keep: Function, function: Function, has_symbolic_backward: bool, *args: Any, **kwargs: Any) -> Any:
        """Trace a call by `keep`, or by PyTorch's `function` in other threads.

        PyTorch's `function` also traces a tensor with symbolic extents, if PyTorch knows the backward operator's result
        only for known extents.
        """
        if not self.includes_this or not (has_symbolic_backward or _has_known_extents(args)):
            return function(*args, **kwargs)
        return keep(*args, **kwargs)


_TRACING = _TracingThreads()


@contextmanager
def keep_operators() -> Iterator[None]:
    """Trace resampling operators and the gradients of SiLU and Mish as eager PyTorch runs them, in this thread.

    A context manager.
    """
    _TRACING.enter()
    try:
        yield
    finally:
        _TRACING.leave()


def decompositions() -> dict[Any, Function]:
    """Return the decompositions for AOTAutograd: the operators to trace as other operators, each with a function."""
    aten = torch().ops.aten
    pools = {find_operator(f"{PREFIX}{name}"): position for name, (position,) in UNREAD_ARGUMENTS.items()}
    return {
        aten.native_dropout.default: _decompose_dropout,
        aten.native_dropout_backward.default: _decompose_dropout_gradient,
        **{each: partial(_without_content, each, position) for each, position in pools.items() if each is not None},
    }


def _decompose_dropout(x: Any, rate: float, train: bool | None) -> Any:
    """Return the result of dropout and the mask, with the bits and the random numbers of PyTorch's CPU kernel.

    Dropout stays one operator on a GPU, and for `x` in another order than row-major: `bernoulli` would draw other
    numbers.
    """
    if train is False or not _has_rounded_scale(x) or not x.is_contiguous():
        return NotImplemented
    t, kept = torch(), 1.0 - rate
    mask = t.ops.aten.bernoulli.p(t.empty_like(x, dtype=t.bool), kept)
    return t.ops.aten.native_dropout_backward(x, mask, _rounded_to(x, 1.0 / kept if kept else 0.0)), mask


def _decompose_dropout_gradient(dy: Any, mask: Any, scale: float) -> Any:
    """Return the gradient of dropout with the bits of eager PyTorch, which rounds the scale to the type of `dy`."""
    if not _has_rounded_scale(dy) or scale == _rounded_to(dy, scale):
        return NotImplemented
    return torch().ops.aten.native_dropout_backward(dy, mask, _rounded_to(dy, scale))


def _without_content(operator: Any, position: int, *args: Any, **kwargs: Any) -> Any:
    """Call an operator that reads no element of the argument at `position`, with an undefined tensor instead."""
    t, x = torch(), args[position]
    formats = [t.contiguous_format, {4: t.channels_last, 5: t.channels_last_3d}.get(x.dim(), t.contiguous_format)]
    order = next((each for each in formats if x.is_contiguous(memory_format=each)), None)
    if order is None or not _is_on_cpu(x):
        return NotImplemented
    undefined = t.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=order)
    with require("torch.fx.experimental.proxy_tensor", extra="torch").decompose({}):
        return operator(*args[:position], undefined, *args[position + 1 :], **kwargs)


def _is_on_cpu(x: Any) -> bool:
    """True for a tensor on the CPU, or on `meta` in the place of a tensor on the CPU."""
    return x.device.type in ("cpu", "meta")


def _has_rounded_scale(x: Any) -> bool:
    """True for the tensors whose dropout multiplies by a scale rounded to the type of the tensor."""
    return x.dtype.is_floating_point and _is_on_cpu(x)


def _rounded_to(x: Any, scale: float) -> float:
    """Return a number rounded to the type of a tensor; infinity above the largest number of the type."""
    with np.errstate(over="ignore"):
        return float(NUMPY[dtype_of(x, "dropout")].type(scale))


def _has_known_extents(args: Sequence[Any]) -> bool:
    """True if no extent of a tensor and no number in a call's arguments is symbolic."""
    lists = [each.shape if isinstance(each, torch().Tensor) else each for each in args]
    numbers = [number for each in lists for number in (each if isinstance(each, list | tuple) else (each,))]
    return not any(isinstance(each, torch().SymInt | torch().SymFloat) for each in numbers)


def _keep_operator(operator: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Call PyTorch's differentiable kernel of an operator."""
    with torch()._C._DisablePythonDispatcher():
        return operator(x, *args, **kwargs)


def _do_not_decompose(*args: Any, **kwargs: Any) -> Any:
    """Return `NotImplemented`: PyTorch then records the operator as is."""
    return NotImplemented


def _call_with_sizes(operator: Any, x: Any, *args: Any) -> Any:
    """Call an operator, given the arguments of the operator's `vec` overload."""
    return operator(x, *_sized_arguments(x.shape, *args))


def _sized_arguments(extents: Sequence[Any], size: Sequence[Any] | None, *rest: Any) -> tuple[Any, ...]:
    """Return the arguments after the tensor of the `default` overload, given those of the `vec` overload.

    Args:
        extents: extents of the tensor.
        size: extents of the result, or None.
        rest: `align_corners` for linear and cubic resampling, then the scales or None.
    """
    *align, scales = rest
    size = require("torch._decomp.decompositions", extra="torch").upsample_compute_output_size(extents, size, scales)
    return size, *align, *(scales or [None] * len(size))


def as_default_overload(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
    """Return a call of a `vec` overload of `RESAMPLING` as a call of the `default` overload: target and arguments.

    The function returns any other call unchanged. `torch.export` keeps `vec` overloads. PyTorch has no `out` variant of
    a `vec` overload, so the result could not be computed in the arena.
    """
    name, _, overload = str(target).removeprefix(PREFIX).partition(".")
    if name not in RESAMPLING or overload != "vec" or kwargs:
        return target, args
    x, *rest = args
    return getattr(torch().ops.aten, name).default, (x, *_sized_arguments(x.layout.size, *rest))
