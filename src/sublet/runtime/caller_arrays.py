"""Validation of arrays passed by the caller against the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sublet.base.arrays import array_of, contiguous, has_memory, has_shape
from sublet.base.errors import RunError
from sublet.base.numpy_types import NUMPY
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Value
from sublet.runtime.dtypes import is_packed, pack
from sublet.runtime.kernel import Array
from sublet.runtime.memory import Raw, aligned_bytes, raw_bytes

PYTHON_NUMBERS = {"f": "fi", "V": "fi", "i": "i", "u": "i"}
"""Kinds of Python numbers accepted for each kind of NumPy type; types of ml_dtypes have kind V."""


def inputs_by_name(inputs: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs given as a mapping, as keywords, or both. Raises RunError for anything else."""
    if inputs is not None and not isinstance(inputs, Mapping):
        raise RunError(f"pass inputs by name, as keywords or in a mapping, not as one {type(inputs).__name__}")
    return {**(inputs or {}), **named}


def aligned_or_copy(array: Array, alignment: int) -> Raw:
    """Return the bytes of an array, copied only if not contiguous or not aligned to `alignment`.

    Arrays mapped from a file may be unaligned. A copy is aligned to 64 bytes, fastest for kernels.
    """
    if array.flags.c_contiguous and (alignment < 2 or array.ctypes.data % alignment == 0):
        return raw_bytes(array)
    moved = aligned_bytes(array.nbytes, 64)
    moved.view(array.dtype).reshape(array.shape)[...] = array
    return moved


def fitting_array(spec: TensorSpec, content: Any, what: str) -> Array:
    """Return an array over the memory of `content`, as a tensor of `spec`.

    For packed types the result has the packed bytes, or one element per byte. A flat array of bytes of the right size
    is accepted for any tensor, as is a flat object without a shape, such as `array.array`. Raises RunError when type
    or shape differ from the plan.
    """
    array, wanted = array_of(content, what), NUMPY[spec.dtype]
    if array.dtype == wanted and array.shape == spec.shape:
        return array
    flat = array.ndim == 1 and array.nbytes == spec.nbytes and array.flags.c_contiguous
    if flat and (array.dtype == np.uint8 or (array.dtype == wanted and not has_shape(content))):
        return array if is_packed(spec) else array.view(wanted).reshape(spec.shape)
    raise RunError(f"{what}: must be {spec}, {wanted}{list(spec.shape)}, not {array.dtype}{list(array.shape)}")


def memory_for(spec: TensorSpec, content: Any, what: str) -> Raw:
    """Return the bytes of the memory given for a tensor, for use in place.

    Raises RunError when type, shape or layout do not fit.
    """
    array = contiguous(fitting_array(spec, content, what), what)
    if is_packed(spec) and array.dtype != np.uint8:
        raise RunError(f"{what}: elements of {spec.dtype} share bytes: pass {spec.nbytes} bytes, not {array.dtype}")
    return raw_bytes(array)


def content_for(value: Value, content: Any, what: str) -> Any:
    """Return the array to store for `value`, over the memory of `content` where possible.

    Raises RunError when type or shape differ from the plan.
    """
    spec = value.spec
    if not isinstance(spec, TensorSpec):
        elsewhere = hasattr(content, "__dlpack__") and not isinstance(
            content, np.ndarray
        )  # NumPy arrays may hold texts
        return array_of(content, what) if elsewhere else content
    array = fitting_array(spec, content if has_memory(content) else _array_of_numbers(content, spec, what), what)
    return pack(array, spec) if is_packed(spec) and array.dtype != np.uint8 else array


def _array_of_numbers(content: Any, spec: TensorSpec, what: str) -> Array:
    """Return an array of Python numbers, converted to the planned type, or of any array-like object."""
    wanted = NUMPY[spec.dtype]
    try:
        array = np.asarray(content)
        python = isinstance(content, float | int | list | tuple)
        return array.astype(wanted) if python and array.dtype.kind in PYTHON_NUMBERS.get(wanted.kind, "") else array
    except Exception as error:  # an array-like object of the caller may raise anything
        raise RunError(f"{what}: {type(content).__name__} is no array: {error}") from None
