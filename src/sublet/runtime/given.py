"""Arrays that the caller gives, held against what was planned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sublet.base.arrays import array_of, contiguous, gives_memory, has_shape
from sublet.base.errors import RunError
from sublet.base.numpy_types import NUMPY
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Value
from sublet.runtime.dtypes import pack, packed
from sublet.runtime.kernel import Array
from sublet.runtime.memory import Raw, aligned_bytes, raw_bytes

PLAIN = {"f": "fi", "V": "fi", "i": "i", "u": "i"}
"""Kinds of Python's numbers that may be given for each kind of type; ml_dtypes' are of kind V."""


def by_name(inputs: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs given as a mapping, as keywords, or both. Raises RunError for anything else."""
    if inputs is not None and not isinstance(inputs, Mapping):
        raise RunError(f"inputs are given by name, as keywords or in a mapping, not as one {type(inputs).__name__}")
    return {**(inputs or {}), **named}


def in_place(array: Array, alignment: int) -> Raw:
    """The bytes of an array, copied only when they do not lie one after another at a multiple of `alignment`.

    Those of a mapped file may not. A copy is where kernels read it fastest.
    """
    if array.flags.c_contiguous and (alignment < 2 or array.ctypes.data % alignment == 0):
        return raw_bytes(array)
    moved = aligned_bytes(array.nbytes, 64)
    moved.view(array.dtype).reshape(array.shape)[...] = array
    return moved


def fitted(spec: TensorSpec, given: Any, what: str) -> Array:
    """An array over the memory of what is given, as a tensor of `spec`; of elements that share a byte, the bytes, or
    one element a byte.

    Plain bytes of the right number may be given for any tensor, and what has no shape but elements in a row, as
    `array.array`. Raises RunError when type or shape differ from what was planned.
    """
    array, wanted = array_of(given, what), NUMPY[spec.dtype]
    if array.dtype == wanted and array.shape == spec.shape:
        return array
    flat = array.ndim == 1 and array.nbytes == spec.nbytes and array.flags.c_contiguous
    if flat and (array.dtype == np.uint8 or (array.dtype == wanted and not has_shape(given))):
        return array if packed(spec) else array.view(wanted).reshape(spec.shape)
    raise RunError(f"{what}: must be {spec}, {wanted}{list(spec.shape)}, not {array.dtype}{list(array.shape)}")


def memory_for(spec: TensorSpec, given: Any, what: str) -> Raw:
    """The bytes of memory that is given for a tensor, to be used where they are.

    Raises RunError when type, shape or layout do not fit.
    """
    array = contiguous(fitted(spec, given, what), what)
    if packed(spec) and array.dtype != np.uint8:
        raise RunError(f"{what}: elements of {spec.dtype} share bytes: give {spec.nbytes} bytes, not {array.dtype}")
    return raw_bytes(array)


def content_for(value: Value, given: Any, what: str) -> Any:
    """The array to store for `value`, over the memory of what is given where it has any.

    Raises RunError when type or shape differ from what was planned.
    """
    spec = value.spec
    if not isinstance(spec, TensorSpec):
        elsewhere = hasattr(given, "__dlpack__") and not isinstance(given, np.ndarray)  # which may hold texts
        return array_of(given, what) if elsewhere else given
    array = fitted(spec, given if gives_memory(given) else _numbers(given, spec, what), what)
    return pack(array, spec) if packed(spec) and array.dtype != np.uint8 else array


def _numbers(given: Any, spec: TensorSpec, what: str) -> Array:
    """An array of Python's numbers, which are of no type in particular, or of what can be made an array."""
    wanted = NUMPY[spec.dtype]
    try:
        array = np.asarray(given)
        python = isinstance(given, float | int | list | tuple)
        return array.astype(wanted) if python and array.dtype.kind in PLAIN.get(wanted.kind, "") else array
    except Exception as error:  # whatever the type of what is given raises
        raise RunError(f"{what}: {type(given).__name__} is no array: {error}") from None
