"""What may be given for an array, and what is given back: memory of NumPy, PyTorch, anything with DLPack or buffers.

Nothing is copied. Every place that takes an array asks `array_of`: memory of any of these becomes an array over the
same bytes, or one error says what to do. Every place that gives one away asks `torch_over`, or gives a `Shared`.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.dlpack import taken
from sublet.base.errors import RunError
from sublet.base.extras import imported, require
from sublet.base.numpy_types import NUMPY
from sublet.base.tensor import DType

Array = NDArray[Any]

NAMES = {
    DType.BF16: "bfloat16",
    DType.F8E4M3FN: "float8_e4m3fn",
    DType.F8E4M3FNUZ: "float8_e4m3fnuz",
    DType.F8E5M2: "float8_e5m2",
    DType.F8E5M2FNUZ: "float8_e5m2fnuz",
    DType.F8E8M0FNU: "float8_e8m0fnu",
}
"""What PyTorch calls the types that NumPy has no word for, and ml_dtypes has."""

STAND_INS: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.int16)}
"""By size, as which types such elements pass between the two."""


def torch_name(dtype: DType) -> str:
    """What PyTorch calls a type of elements."""
    return NAMES.get(dtype) or np.dtype(NUMPY[dtype]).name


def array_of(given: Any, what: str) -> Array:
    """An array over the memory of what is given: a NumPy array, a tensor of PyTorch's, anything with DLPack or the
    buffer protocol. Nothing is copied; strides are kept, and so is that memory is read-only.

    Raises RunError, which calls it `what`, where there is no such memory, and says what to do.
    """
    try:
        array = _array_of(given)
    except (TypeError, ValueError, BufferError, RuntimeError, AttributeError, NotImplementedError) as error:
        raise RunError(f"{what}: {type(given).__name__} does not give access to its bytes: {error}") from None
    if array.dtype.hasobject:
        raise RunError(f"{what}: holds Python objects; give an array of numbers")
    return array


def gives_memory(given: Any) -> bool:
    """Whether `array_of` knows what to do with it; numbers and lists have no memory of their own."""
    if isinstance(given, np.ndarray | np.generic) or hasattr(given, "__dlpack__"):
        return True
    if hasattr(given, "__array_interface__"):
        return True
    try:
        memoryview(given)
    except TypeError:
        return False
    return True


def has_shape(given: Any) -> bool:
    """Whether it has a shape to be held to; what only has bytes in a row has none."""
    return isinstance(given, np.ndarray | np.generic) or hasattr(given, "__dlpack__")


def contiguous(array: Array, what: str) -> Array:
    """The array. Raises RunError unless its elements lie one after another."""
    if not array.flags.c_contiguous:
        raise RunError(f"{what}: its elements do not lie one after another; give a contiguous array")
    return array


def _array_of(given: Any) -> Array:
    if isinstance(given, np.ndarray):
        if isinstance(given, np.ma.MaskedArray):
            raise TypeError("part of it is masked: fill it first")
        return given
    if isinstance(given, np.generic):
        return np.asarray(given)
    torch = imported("torch")
    if torch is not None and isinstance(given, torch.Tensor):
        return _of_torch(given, torch)
    if hasattr(given, "__dlpack__"):
        return taken(given)
    if hasattr(given, "__array_interface__"):
        return np.asarray(given)
    if hasattr(given, "__cuda_array_interface__"):
        raise BufferError("its memory is that of a device: copy it to the CPU first")
    return np.asarray(memoryview(given))


def _of_torch(tensor: Any, torch: Any) -> Array:
    """An array over a tensor, detached from its history."""
    if tensor.device.type != "cpu":
        raise BufferError(f"it lies on the device {tensor.device}: copy it to the CPU first, as by .cpu()")
    if tensor.layout is not torch.strided:
        raise BufferError(f"its layout is {tensor.layout}: make it dense first, as by .to_dense()")
    if tensor.is_conj() or tensor.is_neg():
        raise BufferError("it stands for another number than it holds: take .resolve_conj().resolve_neg()")
    tensor = tensor.detach()
    kind = _STRANGE.get(str(tensor.dtype))
    if kind is None:
        return np.asarray(tensor.numpy())
    plain = torch.uint8 if kind.itemsize == 1 else torch.int16
    return np.asarray(tensor.view(plain).numpy()).view(kind)


_STRANGE = {f"torch.{name}": NUMPY[dtype] for dtype, name in NAMES.items()}
_NAME_OF = {NUMPY[dtype]: name for dtype, name in NAMES.items()}


def torch_over(array: Array) -> Any:
    """A tensor of PyTorch's over the memory of an array; who has it must not write where the array is read-only.

    Raises RunError for types that PyTorch lacks.
    """
    torch = imported("torch") or require("torch", extra="torch")
    name = _NAME_OF.get(array.dtype)
    plain = array if name is None else array.view(STAND_INS[array.itemsize])
    try:
        tensor = torch.from_numpy(plain) if plain.flags.writeable else _quietly(torch.from_numpy, plain)
    except (TypeError, ValueError) as error:
        raise RunError(f"PyTorch has no tensor of {array.dtype}{list(array.shape)}: {error}") from None
    return tensor if name is None else tensor.view(getattr(torch, name))


def _quietly(make: Any, array: Array) -> Any:
    """PyTorch warns of read-only memory each time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(array)
