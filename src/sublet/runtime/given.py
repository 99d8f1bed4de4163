"""Arrays that the caller gives, held against what was planned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sublet.base.numpy_types import NUMPY
from sublet.base.printable import printable
from sublet.errors import RunError
from sublet.ir.graph import Value
from sublet.runtime.dtypes import pack, packed
from sublet.runtime.kernel import Array
from sublet.runtime.memory import Raw, aligned_bytes, raw_bytes
from sublet.tensor import TensorSpec

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


def checked(spec: TensorSpec, array: Array, name: str) -> Array:
    """`array`, once it is plain bytes of the right number, or has the type and shape of `spec`."""
    as_bytes = array.dtype == np.uint8 and array.ndim == 1 and array.size == spec.nbytes
    if not as_bytes and (array.dtype != NUMPY[spec.dtype] or array.shape != spec.shape):
        raise RunError(f"{name}: must be {spec}, not {array.dtype}{list(array.shape)}")
    return array


def content_for(value: Value, given: Any, what: str) -> Any:
    """The array to store for `value`. Raises RunError when type or shape differ from what was planned."""
    spec = value.spec
    if not isinstance(spec, TensorSpec):
        return given
    wanted = NUMPY[spec.dtype]
    try:
        array = given if isinstance(given, np.ndarray) else np.asarray(given)
        if isinstance(given, float | int | list | tuple) and array.dtype.kind in PLAIN.get(wanted.kind, ""):
            array = array.astype(wanted)  # Python's numbers are of no type in particular
    except Exception as error:  # whatever the type of what is given raises, as a PyTorch tensor with a gradient
        raise RunError(f"{what}: {type(given).__name__} is no array: {error}") from None
    if array.dtype != wanted or array.shape != spec.shape:
        raise RunError(f"{what}: must be {spec}, {wanted}{list(spec.shape)}, not {array.dtype}{list(array.shape)}")
    return pack(array, spec) if packed(spec) else array


def listed(names: Any) -> str:
    """The first of the names, for messages."""
    shown = [repr(printable(name)) for name in list(names)[:20]]
    return ", ".join(shown) or "none"
