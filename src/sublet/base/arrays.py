"""Conversion between array objects without copies: NumPy, PyTorch, DLPack, and the buffer protocol.

Every function with an array parameter calls `array_of`: the memory of any supported object becomes an array over the
same bytes, or an error says what to do. Every function with an array result calls `torch_over`, or returns a
`SharedArray`.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.dlpack import array_from_dlpack
from sublet.base.errors import RunError
from sublet.base.optional_imports import imported_module, require
from sublet.base.tensor import NUMPY, DType, TensorSpec

Array = NDArray[Any]

NAMES = {
    DType.BF16: "bfloat16",
    DType.F8E4M3FN: "float8_e4m3fn",
    DType.F8E4M3FNUZ: "float8_e4m3fnuz",
    DType.F8E5M2: "float8_e5m2",
    DType.F8E5M2FNUZ: "float8_e5m2fnuz",
    DType.F8E8M0FNU: "float8_e8m0fnu",
}
"""PyTorch's names of the types that NumPy lacks and ml_dtypes provides."""

CARRIER_TYPES: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.int16)}
"""By item size in bytes, the types that carry these elements between NumPy and PyTorch."""


def torch_name(dtype: DType) -> str:
    """Return PyTorch's name of an element type."""
    return NAMES.get(dtype) or np.dtype(NUMPY[dtype]).name


BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def parse_numbers(text: str, dtype: np.dtype[Any]) -> Array:
    """Return the numbers in a text, separated by commas, as a vector of `dtype`.

    Raises ValueError for a text other than numbers of the type.
    """
    parse: Any = {"b": lambda part: BOOLEANS[part.lower()], "i": int, "u": int}.get(dtype.kind, float)
    try:
        with np.errstate(over="raise"):
            return np.array([parse(part.strip()) for part in text.split(",")], dtype)
    except (KeyError, ValueError, OverflowError, FloatingPointError):
        raise ValueError(f"not a number of type {dtype}") from None


def array_of(source: Any, what: str) -> Array:
    """Return an array over the memory of a NumPy array, a PyTorch tensor, or any object with DLPack or buffer protocol.

    The function copies no bytes; the array keeps the strides, and is read-only where the memory is.

    Raises RunError for an object without accessible memory; the message calls the object `what` and says what to do.
    """
    try:
        array = _array_of(source)
    except (TypeError, ValueError, BufferError, RuntimeError, AttributeError, NotImplementedError) as error:
        raise RunError(f"{what}: {type(source).__name__} does not expose its bytes: {error}") from None
    if array.dtype.hasobject:
        raise RunError(f"{what}: holds Python objects; pass an array of numbers")
    return array


def has_memory(source: Any) -> bool:
    """True if `array_of` accepts the object; numbers and lists have no memory to share."""
    if isinstance(source, np.ndarray | np.generic) or hasattr(source, "__dlpack__"):
        return True
    if hasattr(source, "__array_interface__"):
        return True
    try:
        memoryview(source)
    except TypeError:
        return False
    return True


def has_shape(source: Any) -> bool:
    """True if the object has a shape to validate; an object with the buffer protocol alone has only bytes in a row."""
    return isinstance(source, np.ndarray | np.generic) or hasattr(source, "__dlpack__")


def contiguous(array: Array, what: str) -> Array:
    """Return the array. Raises RunError unless the elements lie one after another."""
    if not array.flags.c_contiguous:
        raise RunError(f"{what}: its elements are not contiguous; pass a contiguous array")
    return array


def _array_of(source: Any) -> Array:
    if isinstance(source, np.ndarray):
        if isinstance(source, np.ma.MaskedArray):
            raise TypeError("it has masked elements: fill them first")
        return source
    if isinstance(source, np.generic):
        return np.asarray(source)
    torch = imported_module("torch")
    if torch is not None and isinstance(source, torch.Tensor):
        return _of_torch(source, torch)
    if hasattr(source, "__dlpack__"):
        return array_from_dlpack(source)
    if hasattr(source, "__array_interface__"):
        return np.asarray(source)
    if hasattr(source, "__cuda_array_interface__"):
        raise BufferError("its memory is on a device: copy it to the CPU first")
    return np.asarray(memoryview(source))


def _of_torch(tensor: Any, torch: Any) -> Array:
    """Return an array over the memory of a tensor, detached from the autograd history."""
    if tensor.device.type != "cpu":
        raise BufferError(f"it lies on the device {tensor.device}: copy it to the CPU first, as by .cpu()")
    if tensor.layout is not torch.strided:
        raise BufferError(f"its layout is {tensor.layout}: make it dense first, as by .to_dense()")
    if tensor.is_conj() or tensor.is_neg():
        raise BufferError("it is a lazy conjugate or negative: pass x.resolve_conj().resolve_neg()")
    tensor = tensor.detach()
    kind = _NUMPY_BY_TORCH_NAME.get(str(tensor.dtype))
    if kind is None:
        return np.asarray(tensor.numpy())
    plain = torch.uint8 if kind.itemsize == 1 else torch.int16
    return np.asarray(tensor.view(plain).numpy()).view(kind)


_NUMPY_BY_TORCH_NAME = {f"torch.{name}": NUMPY[dtype] for dtype, name in NAMES.items()}
_NAME_OF = {NUMPY[dtype]: name for dtype, name in NAMES.items()}


def torch_over(array: Array) -> Any:
    """Return a PyTorch tensor over the memory of an array; the caller must not write to memory of a read-only array.

    Raises RunError for types unknown to PyTorch.
    """
    torch = imported_module("torch") or require("torch", extra="torch")
    name = _NAME_OF.get(array.dtype)
    plain = array if name is None else array.view(CARRIER_TYPES[array.itemsize])
    try:
        tensor = torch.from_numpy(plain) if plain.flags.writeable else _quietly(torch.from_numpy, plain)
    except (TypeError, ValueError) as error:
        raise RunError(f"PyTorch has no tensor type for {array.dtype}{list(array.shape)}: {error}") from None
    return tensor if name is None else tensor.view(getattr(torch, name))


def _quietly(make: Any, array: Array) -> Any:
    """Call `make` without PyTorch's warning about read-only memory, which PyTorch repeats on each call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(array)


# Tensors as arrays over their bytes; elements smaller than a byte are packed.


def is_packed(spec: TensorSpec) -> bool:
    """True if several elements share a byte."""
    return spec.dtype.bits < 8


def array_over(raw: NDArray[np.uint8], spec: TensorSpec) -> NDArray[Any]:
    """Return the tensor in `raw` as an array over the same bytes; packed types stay bytes."""
    if is_packed(spec):
        return raw
    return raw.view(NUMPY[spec.dtype]).reshape(spec.shape)


def pack(array: NDArray[Any], spec: TensorSpec) -> NDArray[np.uint8]:
    """Return the bytes of a packed type, first element in the lowest bits; `array` has one element per byte."""
    bits, per_byte = spec.dtype.bits, 8 // spec.dtype.bits
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    padded = np.zeros(spec.nbytes * per_byte, np.uint8)
    padded[: raw.size] = raw
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    packed_bytes: NDArray[np.uint8] = np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1)
    return packed_bytes


def unpack(raw: NDArray[np.uint8], spec: TensorSpec) -> NDArray[Any]:
    """Return the elements of packed bytes, one per byte, in the NumPy type of `spec`."""
    bits, per_byte = spec.dtype.bits, 8 // spec.dtype.bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    elements = ((raw.reshape(-1, 1) >> shifts) & np.uint8((1 << bits) - 1)).reshape(-1)[: spec.size]
    if spec.dtype in (DType.I4, DType.I2):
        sign = np.uint8(1 << (bits - 1))
        elements = ((elements ^ sign) - sign).view(np.int8).astype(NUMPY[spec.dtype])
        return elements.reshape(spec.shape)
    if spec.dtype is DType.F4E2M1:
        return elements.view(NUMPY[spec.dtype]).reshape(spec.shape)
    return elements.astype(NUMPY[spec.dtype]).reshape(spec.shape)


def unpacked_elements(operand: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    """Return the elements of the tensor at `operand`, unpacked if packed; a copy only for packed types."""
    return unpack(operand, spec) if is_packed(spec) else operand
