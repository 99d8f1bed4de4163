"""Constants of an ONNX model: initialisers, external data and folded results, loaded lazily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.errors import ModelError
from sublet.base.optional_imports import require
from sublet.base.tensor import DType, Spec, TensorSpec
from sublet.integrations.onnx.reader.types import TensorType, Type, spec_of

if TYPE_CHECKING:
    import onnx

Array = NDArray[Any]
MAX_LITERAL_ELEMENTS = 64
MAX_SMALL_BYTES = 1 << 20
"""The largest constant evaluated during the import, in bytes; larger constants are evaluated on read."""


@dataclass(frozen=True)
class Weight:
    """A constant with lazily loaded elements: `array()` reads the file or computes the elements.

    Arrays of sub-byte types have one element per byte, in the types of ml_dtypes. `type` is the known type of an
    unplannable constant, for example strings.
    """

    spec: Spec
    load: Callable[[], Array] = field(repr=False, compare=False)
    type: Type = None

    def array(self) -> Array:
        """Return the elements. Raises ModelError when the file does not hold the elements."""
        return self.load()

    @property
    def is_small(self) -> bool:
        """True if the import may inspect the elements: at most `MAX_SMALL_BYTES`, and no sub-byte type."""
        return isinstance(self.spec, TensorSpec) and self.spec.nbytes <= MAX_SMALL_BYTES and self.spec.dtype.bits >= 8


def weight_of_array(array: Array, spec: TensorSpec) -> Weight:
    """Return a constant with the elements of `array`."""
    return Weight(spec, lambda: array)


def weight_of_tensor(tensor: onnx.TensorProto, folder: Path | None, where: str) -> Weight:
    """Return the constant of a TensorProto; external data lies below `folder`.

    Raises ModelError for an impossible shape or missing data.
    """
    type, spec = _declared_type(tensor.data_type, tensor.dims, f"{where}: tensor {tensor.name!r}")
    if tensor.data_location == tensor.EXTERNAL:
        if not isinstance(spec, TensorSpec):
            raise ModelError(f"{where}: tensor {tensor.name!r}: external data of type {tensor.data_type}")
        return Weight(spec, external_reader(tensor, spec, folder, where))
    _check_inline_size(tensor, spec, where)
    return Weight(spec, lambda: _inline_array(tensor, where), type)


def _declared_type(elem: int, dims: Sequence[int], where: str) -> tuple[TensorType, Spec]:
    """Return the declared type and the spec. Raises ModelError for an impossible shape."""
    type = TensorType(elem, tuple(dims))
    try:
        return type, spec_of(type, "the element type is not supported")
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from None


def _check_inline_size(tensor: onnx.TensorProto, spec: Spec, where: str) -> None:
    """Raise ModelError if the bytes stored in the file do not match the spec."""
    if not isinstance(spec, TensorSpec):
        return
    if tensor.HasField("raw_data"):
        stored_bytes = len(tensor.raw_data)
        if stored_bytes != spec.nbytes:
            raise ModelError(
                f"{where}: tensor {tensor.name!r} is {spec}, {spec.nbytes} bytes, but holds {stored_bytes}"
            )
    elif spec.size and not any(
        (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data)
    ):
        raise ModelError(f"{where}: tensor {tensor.name!r} is {spec} but holds no data")


def _inline_array(tensor: onnx.TensorProto, where: str) -> Array:
    """Return the elements stored in the model file. Raises ModelError for corrupt data."""
    numpy_helper = require("onnx.numpy_helper", extra="onnx")
    try:
        array: Array = numpy_helper.to_array(tensor)
    except Exception as error:  # the onnx package validates nothing, so any exception is possible
        raise ModelError(f"{where}: tensor {tensor.name!r} does not hold its elements: {error}") from None
    return array


def external_reader(tensor: onnx.TensorProto, spec: TensorSpec, folder: Path | None, where: str) -> Callable[[], Array]:
    """Return a function reading the tensor from the external file; only the size of the file is checked now.

    The file must lie below `folder` after resolving symbolic links. Raises ModelError otherwise.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    name, location = f"{where}: tensor {tensor.name!r}", entries.get("location", "")
    if folder is None or not location:
        raise ModelError(f"{name} has external data without a {'folder' if location else 'location'}")
    offset = _parse_byte_count(entries.get("offset", "0"), "offset", name)
    length = _parse_byte_count(entries.get("length", str(spec.nbytes)), "length", name)
    if length != spec.nbytes:
        raise ModelError(f"{name} is {spec}, {spec.nbytes} bytes, but its external data has length {length}")
    path = external_file(folder, location, name)
    if offset + length > path.stat().st_size:
        raise ModelError(f"{name} needs bytes {offset} to {offset + length} of {location}, which is shorter")

    def read_tensor() -> Array:
        numpy_helper = require("onnx.numpy_helper", extra="onnx")
        try:
            with external_file(folder, location, name).open("rb") as file:
                file.seek(offset)
                raw = file.read(length)
        except OSError as error:
            raise ModelError(f"{name}: {location} cannot be read: {error.strerror}") from None
        if len(raw) != length:
            raise ModelError(f"{name}: {location} became shorter during use")
        inline = type(tensor)(data_type=tensor.data_type, dims=tensor.dims, raw_data=raw)
        array: Array = numpy_helper.to_array(inline)
        return array

    return read_tensor


def _parse_byte_count(text: str, what: str, name: str) -> int:
    """Parse a byte count. Raises ModelError for text of another form."""
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ModelError(f"{name}: external data has the {what} {text!r}, not a count of bytes")
    return int(text)


def external_file(folder: Path, location: str, name: str) -> Path:
    """Return the path of `location` below `folder`. Raises ModelError for a missing file or a file outside `folder`."""
    try:
        root = folder.resolve(strict=True)
        path = (root / location).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelError(f"{name}: external data {location!r} cannot be found: {error}") from None
    if not path.is_relative_to(root):
        raise ModelError(f"{name}: external data {location!r} lies outside the model's folder; it is not read")
    if not path.is_file():
        raise ModelError(f"{name}: external data {location!r} is not a file")
    return path


def literal_of(weight: Weight) -> tuple[int | float | bool, ...] | None:
    """Return the elements of a small constant of type bool, i32 or i64, None for the rest.

    Axes, extents, indices and conditions have the types bool, i32 and i64. Contents of the remaining types are left
    out: a plan stays valid when weights change.
    """
    spec = weight.spec
    if not isinstance(spec, TensorSpec) or not weight.is_small or spec.size > MAX_LITERAL_ELEMENTS:
        return None
    if spec.dtype not in (DType.BOOL, DType.I32, DType.I64):
        return None
    return tuple(weight.array().ravel().tolist())


def weight_of_sparse(coded: onnx.SparseTensorProto, folder: Path | None, where: str) -> Weight:
    """Return the constant of a sparse initialiser or attribute as a dense tensor.

    Raises ModelError for an impossible shape or missing data.
    """
    name = f"{where}: sparse tensor {coded.values.name!r}"
    values, indices = weight_of_tensor(coded.values, folder, where), weight_of_tensor(coded.indices, folder, where)
    shape = tuple(coded.dims)
    type, spec = _declared_type(coded.values.data_type, shape, name)

    def load() -> Array:
        places, elements = indices.array(), values.array()
        dense = np.zeros(shape, elements.dtype)
        try:
            flat = places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), shape)
            if flat.min(initial=0) < 0 or flat.shape != elements.shape:
                raise IndexError(f"{list(places.shape)} indices for {elements.size} elements")
            dense.reshape(-1)[flat] = elements
        except (IndexError, ValueError) as error:
            raise ModelError(f"{name}: the indices do not fit: {error}") from None
        return dense

    return Weight(spec, load, type)
