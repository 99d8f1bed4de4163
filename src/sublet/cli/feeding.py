"""Arrays in and out of files, and from chance: what `sublet run` feeds a network, and where its outputs go.

Files are NumPy's: .npy, and .npz with one entry a name. What a header claims is compared with the size of the
file and the type of the input before any element is read, and nothing is unpickled.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from math import prod
from pathlib import Path
from typing import IO, Any
from zlib import error as ZlibError

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from sublet.base.errors import RunError
from sublet.base.files import write
from sublet.base.numpy_types import NUMPY
from sublet.base.printable import known_names, printable
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Value
from sublet.runtime.dtypes import packed

ENTRY = ".npy"
ARCHIVE = ".npz"
LARGEST_OUTSIDE = 1 << 30
"""Bytes of an array whose size the plan does not know."""

SHOWN = 20

_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{0,40})?(e[+-]?[0-9]{1,3})?|[+-]?(inf|nan)|true|false", re.IGNORECASE)

TRUTH = {"true": True, "false": False, "1": True, "0": False}

Arrays = dict[str, Any]


def read_inputs(given: Sequence[str], inputs: Mapping[str, Value]) -> Arrays:
    """The arrays of `NAME=FILE.npy`, `NAME=FILE.npz`, `FILE.npz` and `NAME=NUMBER`, by name of the input.

    Raises RunError for a name that is no input, a file that cannot be read, or an array of another type or shape.
    """
    arrays: Arrays = {}
    for text in given:
        for name, array in _read(text, inputs).items():
            if name in arrays:
                raise RunError(f"--input: {printable(name)!r} is given twice")
            arrays[name] = array
    return arrays


def files_of(given: Sequence[str]) -> list[Path]:
    """The files that `read_inputs` reads, as far as the names alone tell."""
    return [Path(text.rpartition("=")[2]) for text in given]


def missing_inputs(missing: Mapping[str, Value], of: int) -> str:
    """A message that lists the inputs nobody gave, which are some `of` so many."""
    lines = [f"  {printable(name)}: {value.spec}" for name, value in list(missing.items())[:SHOWN]]
    if len(missing) > SHOWN:
        lines.append(f"  and {len(missing) - SHOWN} more")
    advice = "give each as --input NAME=FILE.npy, or fill them with --random SEED"
    return "\n".join([f"{len(missing)} of {of} inputs are missing; {advice}:", *lines])


def random_arrays(values: Mapping[str, Value], seed: int) -> Arrays:
    """An array for every value, the same for the same seed: floats from a normal distribution, integers 0 or 1.

    Integers are so small because they may be indices. Raises RunError for a value whose shape is not known.
    """
    rng = np.random.default_rng(seed)
    return {name: _random(rng, name, value) for name, value in values.items()}


def write_arrays(arrays: Mapping[str, Any], path: Path) -> None:
    """Write arrays as .npz, whole or not at all; the same arrays give the same bytes.

    A list becomes one entry an element, `name.0`, `name.1`; None is left out. Types that NumPy lacks are
    stored as raw bytes of their size. Raises RunError when the file cannot be written.
    """
    content = BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name, array in _flat(arrays):
            with archive.open(zipfile.ZipInfo(f"{name}{ENTRY}"), "w", force_zip64=True) as entry:
                npy.write_array(entry, array, allow_pickle=False)
    write(path, content.getvalue(), RunError)


def _flat(arrays: Mapping[str, Any]) -> list[tuple[str, NDArray[Any]]]:
    entries: list[tuple[str, NDArray[Any]]] = []
    for name, content in arrays.items():
        if isinstance(content, list | tuple):
            entries += _flat({f"{name}.{i}": element for i, element in enumerate(content)})
        elif content is not None:
            array = np.asarray(content)
            if array.dtype.hasobject:
                array = array.astype(np.str_)
            if array.dtype.kind == "V" or array.dtype.isbuiltin == 2:  # ml_dtypes
                array = array.view(f"V{array.dtype.itemsize}")
            entries.append((name, array))
    return entries


def _random(rng: np.random.Generator, name: str, value: Value) -> NDArray[Any]:
    spec = value.spec
    if not isinstance(spec, TensorSpec):
        raise RunError(f"{printable(name)} is {spec.type} ({spec.reason}): --random cannot fill it, give it as --input")
    kind, dtype = NUMPY[spec.dtype], spec.dtype
    try:
        if dtype.text.startswith(("i", "u")) or dtype is DType.BOOL:
            return np.asarray(rng.integers(0, 2, spec.shape, np.int8).astype(kind))
        numbers = np.asarray(rng.standard_normal(spec.shape, np.float32))
        return (np.abs(numbers) if dtype is DType.F8E8M0FNU else numbers).astype(kind)
    except (MemoryError, ValueError) as error:
        raise RunError(f"{printable(name)}: {spec} cannot be allocated: {error}") from None


def _read(text: str, inputs: Mapping[str, Value]) -> Arrays:
    names = [name for name in inputs if text.startswith(f"{name}=")]
    if names:
        name = max(names, key=len)
        if _NUMBER.fullmatch(text[len(name) + 1 :]):
            return {name: _number(text[len(name) + 1 :], inputs[name])}
        path = Path(text[len(name) + 1 :])
        return {
            name: _from_archive(path, name, inputs)
            if path.suffix.lower() == ARCHIVE
            else _from_file(path, name, inputs)
        }
    if Path(text).suffix.lower() == ARCHIVE and ("=" not in text or Path(text).exists()):
        return _whole_archive(Path(text), inputs)
    known = known_names(inputs)
    raise RunError(
        f"--input {text[:80]}: write NAME=FILE.npy, NAME=FILE.npz, FILE.npz or NAME=NUMBER; the inputs are {known}"
    )


def _number(text: str, value: Value) -> NDArray[Any]:
    """A number, as the input of one element that it is for."""
    spec, what = value.spec, f"--input {printable(value.name)}={text}"
    if not isinstance(spec, TensorSpec) or spec.size != 1 or packed(spec):
        raise RunError(f"{what}: the input is {value.spec}, not one number; give a file, .npy or .npz")
    kind = NUMPY[spec.dtype]
    try:
        number = TRUTH[text.lower()] if kind.kind == "b" else int(text) if kind.kind in "iu" else float(text)
        with np.errstate(over="raise"):
            return np.array(number, kind).reshape(spec.shape)
    except (KeyError, ValueError, OverflowError, FloatingPointError):
        raise RunError(f"{what}: is no number of type {spec.dtype}") from None


def _from_file(path: Path, name: str, inputs: Mapping[str, Value]) -> NDArray[Any]:
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            return _read_array(stream, size, inputs[name], str(path))
    except OSError as error:
        raise _unreadable(path, error) from None


def _from_archive(path: Path, name: str, inputs: Mapping[str, Value]) -> NDArray[Any]:
    """The entry of that name, or the only one."""
    entries = _entries(path)
    entry = f"{name}{ENTRY}" if f"{name}{ENTRY}" in entries else next(iter(entries), "")
    if not entry or (len(entries) > 1 and entry != f"{name}{ENTRY}"):
        held = ", ".join(repr(printable(entry)) for entry in list(entries)[:SHOWN]) or "nothing"
        raise RunError(f"{path}: has no array {printable(name)!r}; it holds {held}")
    return _read_entry(path, entries[entry], inputs[name])


def _whole_archive(path: Path, inputs: Mapping[str, Value]) -> Arrays:
    arrays = {}
    for entry, about in _entries(path).items():
        name = entry.removesuffix(ENTRY)
        if name not in inputs:
            known = known_names(inputs)
            raise RunError(f"{path}: {printable(name)!r} is no input; the inputs are {known}")
        arrays[name] = _read_entry(path, about, inputs[name])
    return arrays


def _entries(path: Path) -> dict[str, zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(path) as archive:
            return {about.filename: about for about in archive.infolist()}
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise _unreadable(path, error) from None


def _read_entry(path: Path, about: zipfile.ZipInfo, value: Value) -> NDArray[Any]:
    where = f"{path}, {printable(about.filename)}"
    try:
        with zipfile.ZipFile(path) as archive, archive.open(about) as stream:
            return _read_array(stream, about.file_size, value, where)
    except (OSError, EOFError, zipfile.BadZipFile, ZlibError, NotImplementedError, RuntimeError) as error:
        raise _unreadable(where, error) from None


def _read_array(stream: IO[bytes], size: int, value: Value, where: str) -> NDArray[Any]:
    """The array of a .npy stream of `size` bytes, read only when it is what `value` must be."""
    try:
        version = npy.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise RunError(f"{where}: has version {version} of the .npy format; save plain arrays with numpy.save")
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_columns, dtype = header(stream)
    except (ValueError, EOFError, SyntaxError, RecursionError, MemoryError) as error:
        raise RunError(f"{where}: is no .npy file: {str(error)[:200]}") from None
    if dtype.hasobject or dtype.itemsize == 0:
        raise RunError(f"{where}: holds {dtype} elements, which are not read from files")
    kind = _expected(value, shape, dtype, where)
    nbytes = prod(shape) * dtype.itemsize
    if any(extent < 0 for extent in shape) or nbytes > size - stream.tell():
        raise RunError(f"{where}: claims {dtype}{list(shape)}, {nbytes:,} bytes, but the file is shorter")
    array = np.frombuffer(stream.read(nbytes), dtype).reshape(shape, order="F" if by_columns else "C")
    return array.view(kind)


def _expected(value: Value, shape: tuple[int, ...], dtype: np.dtype[Any], where: str) -> np.dtype[Any]:
    """The type the elements have in NumPy. Raises RunError when type or shape are not the input's."""
    spec = value.spec
    if not isinstance(spec, TensorSpec):
        if prod(shape) * dtype.itemsize > LARGEST_OUTSIDE:
            raise RunError(f"{where}: claims {dtype}{list(shape)}, more than {LARGEST_OUTSIDE:,} bytes")
        return dtype
    kind = NUMPY[spec.dtype]
    raw = (
        dtype.kind == "V" and dtype.names is None and dtype.itemsize == kind.itemsize
    )  # as types NumPy lacks are saved
    if shape != spec.shape or (dtype != kind and not raw):
        raise RunError(f"{where}: must be {spec}, {kind}{list(spec.shape)}, not {dtype}{list(shape)}")
    return kind


def _unreadable(where: object, error: Exception) -> RunError:
    return RunError(f"{where}: cannot be read: {getattr(error, 'strerror', None) or error}")
