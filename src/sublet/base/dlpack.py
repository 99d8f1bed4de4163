"""DLPack in both directions: memory of another library as an array, and an array as memory for another library.

NumPy supports DLPack for NumPy's own types only. This module supports all types of Sublet, by the versioned protocol
if the peer has the versioned protocol (with a flag for read-only memory), else by the unversioned protocol. The
layouts are those of `dlpack.h`, version 1.1.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sublet.base.tensor import NUMPY, DType

Array = NDArray[Any]

VERSION = (1, 1)
READ_ONLY, COPIED, PADDED = 1, 2, 4
"""Flags: the memory is read-only; the producer made a copy; each sub-byte element takes a whole byte."""

CPU, PINNED_CUDA, PINNED_ROCM, MANAGED_CUDA = 1, 3, 11, 13
READABLE = (CPU, PINNED_CUDA, PINNED_ROCM, MANAGED_CUDA)
"""Kinds of devices with memory addressable by the CPU."""

INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6
CODES: dict[tuple[int, int], DType] = {
    **{(INT, bits): DType.parse(f"i{bits}") for bits in (2, 4, 8, 16, 32, 64)},
    **{(UINT, bits): DType.parse(f"u{bits}") for bits in (2, 4, 8, 16, 32, 64)},
    **{(FLOAT, bits): DType.parse(f"f{bits}") for bits in (16, 32, 64)},
    **{(COMPLEX, bits): DType.parse(f"c{bits}") for bits in (64, 128)},
    (BFLOAT, 16): DType.BF16,
    (BOOL, 8): DType.BOOL,
    (10, 8): DType.F8E4M3FN,
    (11, 8): DType.F8E4M3FNUZ,
    (12, 8): DType.F8E5M2,
    (13, 8): DType.F8E5M2FNUZ,
    (14, 8): DType.F8E8M0FNU,
    (17, 4): DType.F4E2M1,
}
"""The data type of each (type code, bits) pair."""

CODE_OF = {dtype: code for code, dtype in CODES.items()}
DTYPE_OF = {kind: dtype for dtype, kind in NUMPY.items()}


class _Tensor(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_: ClassVar = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_: ClassVar = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


VERSIONED, PLAIN = b"dltensor_versioned", b"dltensor"
USED = {VERSIONED: b"used_dltensor_versioned", PLAIN: b"used_dltensor"}
"""The names of capsules before and after consumption. The bytes must stay in memory: capsules keep pointers to them."""

_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
_is_valid = _api.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_pointer = _api.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
_rename = _api.PyCapsule_SetName
_rename.argtypes, _rename.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_new = _api.PyCapsule_New
_new.argtypes, _new.restype = [ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR], ctypes.py_object
_PROTOTYPE = ctypes.PYFUNCTYPE  # keeps the interpreter's lock, as required by functions on objects
_dying_is_valid = _PROTOTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_dying_pointer = _PROTOTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))


class BorrowedMemory:
    """Memory lent by another library; released when the last array over the memory is gone."""

    def __init__(self, managed: _Managed | _Versioned, interface: dict[str, Any]) -> None:
        self._managed = managed
        self.__array_interface__ = interface

    def __del__(self) -> None:
        if self._managed.deleter:
            _DELETER(self._managed.deleter)(ctypes.addressof(self._managed))


def array_from_dlpack(giver: Any) -> Array:
    """Return an array over the memory of an object with `__dlpack__`; packed sub-byte elements come as bytes.

    Raises BufferError for memory, types and layouts inaccessible to the processor, and passes on all exceptions of the
    object.
    """
    kind, _ = giver.__dlpack_device__() if hasattr(giver, "__dlpack_device__") else (CPU, 0)
    if int(kind) not in READABLE:
        raise BufferError("its memory is on a device: copy it to the CPU first")
    try:
        capsule = giver.__dlpack__(max_version=VERSION)
    except TypeError:  # the producer has only the unversioned protocol
        capsule = giver.__dlpack__()
    name = next((name for name in (VERSIONED, PLAIN) if _is_valid(capsule, name)), None)
    if name is None:
        raise BufferError("its __dlpack__ returned no unused DLPack capsule")
    layout: type[_Managed] | type[_Versioned] = _Versioned if name == VERSIONED else _Managed
    managed = layout.from_address(_pointer(capsule, name))
    _rename(capsule, USED[name])
    holder = BorrowedMemory(managed, {})
    if isinstance(managed, _Versioned) and managed.major != VERSION[0]:
        raise BufferError(f"its DLPack version is {managed.major}; Sublet reads version {VERSION[0]}")
    flags = managed.flags if isinstance(managed, _Versioned) else 0
    return _array(holder, managed.tensor, flags)


def _array(holder: BorrowedMemory, tensor: _Tensor, flags: int) -> Array:
    if tensor.device_type not in READABLE:
        raise BufferError("its memory is on a device: copy it to the CPU first")
    dtype = CODES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise BufferError(f"elements of code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes are unknown")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else None
    packed = dtype.bits < 8 and not flags & PADDED
    if packed:
        if strides is not None and strides != _compact(shape):
            raise BufferError(f"elements of {dtype} that share bytes must be contiguous")
        shape, strides = ((prod(shape) * dtype.bits + 7) // 8,), None
    kind = np.dtype(np.uint8) if packed else NUMPY[dtype]
    address = (tensor.data or 0) + tensor.byte_offset
    if not prod(shape):
        return np.empty(shape, kind)
    holder.__array_interface__ = {
        "version": 3,
        "shape": shape,
        "strides": None if strides is None else tuple(step * kind.itemsize for step in strides),
        "typestr": f"|V{kind.itemsize}",
        "data": (address, bool(flags & READ_ONLY)),
    }
    return np.asarray(holder).view(kind)


def _compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


class _LentArray:
    """An array lent to another library, with the DLPack structures kept alive until the library's release."""

    def __init__(self, array: Array, dtype: DType, versioned: bool) -> None:
        self.array = array
        self.extents = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
        steps = [step // array.itemsize for step in array.strides]
        self.steps = (ctypes.c_int64 * max(1, array.ndim))(*steps)
        code, bits = CODE_OF[dtype]
        tensor = _Tensor(array.ctypes.data, CPU, 0, array.ndim, code, bits, 1, self.extents, self.steps, 0)
        self.managed: _Managed | _Versioned
        deleter = ctypes.cast(_release_callback, ctypes.c_void_p)
        if versioned:
            flags = (0 if array.flags.writeable else READ_ONLY) | (PADDED if bits < 8 else 0)
            self.managed = _Versioned(*VERSION, None, deleter, flags, tensor)
        else:
            self.managed = _Managed(tensor, None, deleter)


_lent: dict[int, _LentArray] = {}
"""The arrays lent to other libraries, by address of the DLPack structure."""


def _release_lent(address: int) -> None:
    _lent.pop(address, None)


def _release_unused_capsule(capsule: int) -> None:
    """Release the array of a capsule that no library consumed."""
    for name in USED:
        if _dying_is_valid(capsule, name):
            _release_lent(_dying_pointer(capsule, name))


_release_callback, _capsule_destructor = _DELETER(_release_lent), _DESTRUCTOR(_release_unused_capsule)


class SharedArray:
    """An array exported without a copy to any library with DLPack, as by `from_dlpack`, or to NumPy by `np.asarray`."""

    def __init__(self, array: Array) -> None:
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @property
    def dtype(self) -> DType:
        """The type, as one of Sublet's."""
        return DTYPE_OF[self._array.dtype]

    def __repr__(self) -> str:
        return f"<Shared {self.dtype}{list(self.shape)}>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype) if copy else np.asarray(self._array, dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a capsule.

        Raises BufferError for arrays not expressible in DLPack, and for arrays that the consumer could misuse.
        """
        if dl_device not in (None, (CPU, 0)):
            raise BufferError("it lies in CPU memory, and can be exported from there only")
        versioned = max_version is not None and max_version[0] >= VERSION[0]
        array = self._array.copy() if copy else self._array
        if not versioned and not array.flags.writeable:
            raise BufferError("it is read-only, and only versioned DLPack can mark it so: copy it first")
        if any(step % array.itemsize for step in array.strides):
            raise BufferError("its strides are no multiples of the element size: copy it first")
        if not versioned and self.dtype.bits < 8:
            raise BufferError("only versioned DLPack can mark elements padded to a byte")
        given = _LentArray(array, self.dtype, versioned)
        if copy and isinstance(given.managed, _Versioned):
            given.managed.flags |= COPIED
        address = ctypes.addressof(given.managed)
        _lent[address] = given
        return _new(address, VERSIONED if versioned else PLAIN, _capsule_destructor)
