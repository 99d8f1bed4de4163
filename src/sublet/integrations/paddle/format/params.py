"""Lazy reader of a program's weights (`.pdiparams`, `__params__`): position of each weight, content on demand.

The file has an entry for each persistable variable, sorted by name, without the names.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from sublet.base.errors import ModelError, SubletError
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.paddle.format.program import DTYPES, TENSOR, PaddleProgram
from sublet.integrations.paddle.format.wire import WireMessage

ELEMENTS: Mapping[DType, Any] = {
    DType.BOOL: np.bool_, DType.I8: np.int8, DType.I16: np.int16, DType.I32: np.int32, DType.I64: np.int64,
    DType.U8: np.uint8, DType.U64: np.uint64, DType.F16: np.float16, DType.F32: np.float32, DType.F64: np.float64,
    DType.C64: np.complex64, DType.C128: np.complex128, DType.BF16: ml_dtypes.bfloat16,
    DType.F8E4M3FN: ml_dtypes.float8_e4m3fn, DType.F8E5M2: ml_dtypes.float8_e5m2,
}  # fmt: skip

MAX_LEVELS = 64
"""Limit of levels of detail of a weight. Beyond, the file is refused."""
MAX_DESCRIPTION_BYTES = 1 << 16
"""Limit of bytes of a tensor description. Beyond, the file is refused."""


@dataclass(frozen=True, slots=True)
class StoredParam:
    """A weight in a file: the spec, and the byte offset of the elements."""

    path: Path
    spec: TensorSpec
    offset: int

    def array(self) -> NDArray[Any]:
        """Read the elements. Raises ModelError if the file cannot be read or became shorter."""
        try:
            elements = np.fromfile(self.path, ELEMENTS[self.spec.dtype], self.spec.size, offset=self.offset)
        except OSError as cause:
            raise ModelError(f"{self.path}: cannot be read: {cause.strerror or cause}") from cause
        if elements.size != self.spec.size:
            raise ModelError(f"{self.path}: became shorter during use")
        return elements.reshape(self.spec.shape)


def read_params(path: str | Path, program: PaddleProgram) -> Mapping[str, StoredParam]:
    """Return the weights of a program by name.

    Raises ModelError unless the file has exactly the weights declared by the program.
    """
    path = Path(path)
    names = sorted(name for name, var in program.blocks[0].vars.items() if var.persistable and var.kind == TENSOR)
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            params = {name: _read_entry(file, size, path, name) for name in names}
            rest = size - file.tell()
    except OSError as cause:
        raise ModelError(f"{path}: cannot be read: {cause.strerror or cause}") from cause
    if rest:
        raise ModelError(f"{path}: {rest} bytes are left behind the {len(names)} weights that the program declares")
    for name, param in params.items():
        var = program.blocks[0].vars[name]
        if var.dtype is not param.spec.dtype or len(var.dims) != len(param.spec.shape) or any(
            declared not in (-1, extent) for declared, extent in zip(var.dims, param.spec.shape, strict=False)
        ):  # fmt: skip
            declared = f"{var.dtype}{list(var.dims)}"
            raise ModelError(f"{path}: the weight {name!r} is {param.spec}, the program declares {declared}")
    return params


def _read_entry(file: BinaryIO, size: int, path: Path, name: str) -> StoredParam:
    """Read the next entry: version, levels of detail, tensor version, description; skip the elements."""

    def take(count: int) -> bytes:
        """Read `count` bytes. Raises ModelError at the end of the file."""
        raw = file.read(count)
        if len(raw) < count:
            raise ModelError(f"{path}: ends within the weight {name!r} (it is cut off, or belongs to another program)")
        return raw

    def number(form: str, maximum: int, what: str) -> int:
        """Read a number of the `struct` format `form` from 0 to `maximum`. Raises ModelError otherwise."""
        at = file.tell()
        value = int(struct.unpack(form, take(struct.calcsize(form)))[0])
        if not 0 <= value <= maximum:
            raise ModelError(f"{path}: at byte {at}: weight {name!r} has {value} {what}: not a file of weights")
        return value

    number("<I", 0, "as its version")
    for _ in range(number("<Q", MAX_LEVELS, "levels of detail")):
        file.seek(number("<Q", size - file.tell(), "bytes of a level of detail"), 1)
    number("<I", 0, "as the version of its tensor")
    at = file.tell()
    described = WireMessage.parse(
        take(number("<i", MAX_DESCRIPTION_BYTES, "bytes of description")), f"{path}: weight {name!r}"
    )
    dtype = DTYPES.get(described.integer(1, -1))
    if dtype is None:
        raise ModelError(f"{path}: at byte {at}: weight {name!r} has elements of an unknown type")
    try:
        spec = TensorSpec(dtype, described.integers(2))
    except SubletError as error:
        raise ModelError(f"{path}: at byte {at}: weight {name!r}: {error}") from None
    offset = file.tell()
    if offset + spec.nbytes > size:
        raise ModelError(f"{path}: ends within the weight {name!r} (it is cut off, or belongs to another program)")
    file.seek(spec.nbytes, 1)
    return StoredParam(path, spec, offset)
