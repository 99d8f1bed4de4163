"""Arrays for `sublet run`: inputs from files or from a random generator, outputs to files.

The files are NumPy's: .npy, and .npz with one entry a name. The reader compares the header with the size of the file
and with the type of the input before any element is read, and unpickles nothing.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Mapping, Sequence
from io import BytesIO
from math import prod
from pathlib import Path
from typing import IO, Any
from zlib import error as ZlibError

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from sublet.base.arrays import is_packed, parse_numbers
from sublet.base.errors import RunError
from sublet.base.files import write
from sublet.base.formatting import known_names, printable
from sublet.base.tensor import NUMPY, DType, TensorSpec
from sublet.ir.graph import Value

ENTRY_SUFFIX = ".npy"
ARCHIVE_SUFFIX = ".npz"
ARCHIVE_BEGINNINGS = (b"PK\x03\x04", b"PK\x05\x06")
"""The first bytes of an archive, and of an empty one. Another program may lie in front of a zip."""
MAX_UNPLANNED_BYTES = 1 << 30
"""Maximum bytes of an array for an input of unknown size; a larger array is an error."""

MAX_LISTED = 20
"""Maximum of inputs or entries listed in an error message."""

_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{0,40})?(e[+-]?[0-9]{1,3})?|[+-]?(inf|nan)|true|false", re.IGNORECASE)

Arrays = dict[str, Any]


def read_inputs(texts: Sequence[str], inputs: Mapping[str, Value]) -> Arrays:
    """Return the arrays of `NAME=FILE.npy`, `NAME=FILE.npz`, `FILE.npz` and `NAME=NUMBER`, by name of the input.

    Raises RunError for an unknown input name, an unreadable file, or an array of a wrong type or shape.
    """
    arrays: Arrays = {}
    for text in texts:
        for name, array in _read_input_option(text, inputs).items():
            if name in arrays:
                raise RunError(f"--input: {printable(name)!r} is given twice")
            arrays[name] = array
    return arrays


def given_names(texts: Sequence[str], names: Collection[str]) -> set[str]:
    """Return the names, out of `names`, of the arrays in `NAME=...` texts and in archives. Raises as `read_inputs`."""
    archives = [text for text in texts if Path(text).suffix.lower() == ARCHIVE_SUFFIX and Path(text).exists()]
    entries = {entry.removesuffix(ENTRY_SUFFIX) for path in archives for entry in _list_entries(Path(path))}
    return {name for name in names if name in entries or any(text.startswith(f"{name}=") for text in texts)}


def input_paths(texts: Sequence[str]) -> list[Path]:
    """Return the paths of the files read by `read_inputs`, guessed from the texts alone (a number counts as a path)."""
    return [Path(text.rpartition("=")[2]) for text in texts]


def missing_inputs_message(missing: Mapping[str, Value], of: int) -> str:
    """Return the error message listing the `missing` inputs, out of `of` inputs in total."""
    lines = [f"  {printable(name)}: {value.spec}" for name, value in list(missing.items())[:MAX_LISTED]]
    if len(missing) > MAX_LISTED:
        lines.append(f"  and {len(missing) - MAX_LISTED} more")
    advice = "pass each as --input NAME=FILE.npy, or fill all with --random SEED"
    return "\n".join([f"{len(missing)} of {of} inputs are missing; {advice}:", *lines])


def random_arrays(values: Mapping[str, Value], seed: int) -> Arrays:
    """Return a random array for every value, reproducible by seed: floats from a normal distribution, integers 0 or 1.

    Integers are 0 or 1 because an integer input may be an index. Raises RunError for a value of unknown shape.
    """
    rng = np.random.default_rng(seed)
    return {name: _random_array(rng, name, value) for name, value in values.items()}


def write_arrays(arrays: Mapping[str, Any], path: Path) -> None:
    """Write arrays as .npz atomically; the same arrays give the same bytes.

    A list becomes one entry an element (`name.0`, `name.1`); None is left out. Elements of types unknown to NumPy's
    format are stored as raw bytes. Raises RunError if the file cannot be written.
    """
    content = BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name, array in _flatten_entries(arrays):
            with archive.open(zipfile.ZipInfo(f"{name}{ENTRY_SUFFIX}"), "w", force_zip64=True) as entry:
                npy.write_array(entry, array, allow_pickle=False)
    write(path, content.getvalue(), RunError)


def _flatten_entries(arrays: Mapping[str, Any]) -> list[tuple[str, NDArray[Any]]]:
    """Return (entry name, array) pairs, with lists flattened."""
    entries: list[tuple[str, NDArray[Any]]] = []
    for name, content in arrays.items():
        if isinstance(content, list | tuple):
            entries += _flatten_entries({f"{name}.{i}": element for i, element in enumerate(content)})
        elif content is not None:
            array = np.asarray(content)
            if array.dtype.hasobject:
                array = array.astype(np.str_)
            if array.dtype.kind == "V" or array.dtype.isbuiltin == 2:  # types of ml_dtypes have no .npy form
                array = array.view(f"V{array.dtype.itemsize}")
            entries.append((name, array))
    return entries


def _random_array(rng: np.random.Generator, name: str, value: Value) -> NDArray[Any]:
    spec = value.spec
    if not isinstance(spec, TensorSpec):
        raise RunError(
            f"{printable(name)} is {spec.type} ({spec.reason}): --random cannot fill this type; pass --input"
        )
    kind, dtype = NUMPY[spec.dtype], spec.dtype
    try:
        if dtype.text.startswith(("i", "u")) or dtype is DType.BOOL:
            return np.asarray(rng.integers(0, 2, spec.shape, np.int8).astype(kind))
        numbers = np.asarray(rng.standard_normal(spec.shape, np.float32))
        return (np.abs(numbers) if dtype is DType.F8E8M0FNU else numbers).astype(kind)
    except (MemoryError, ValueError) as error:
        raise RunError(f"{printable(name)}: {spec} cannot be allocated: {error}") from None


def _read_input_option(text: str, inputs: Mapping[str, Value]) -> Arrays:
    """Return the arrays of one `--input` text. Raises RunError for a text of another form."""
    names = [name for name in inputs if text.startswith(f"{name}=")]
    if names:
        name = max(names, key=len)
        if _NUMBER.fullmatch(text[len(name) + 1 :]):
            return {name: _parse_number(text[len(name) + 1 :], inputs[name])}
        path = Path(text[len(name) + 1 :])
        return {
            name: _read_named_entry(path, name, inputs)
            if path.suffix.lower() == ARCHIVE_SUFFIX
            else _read_npy_file(path, name, inputs)
        }
    if Path(text).suffix.lower() == ARCHIVE_SUFFIX and ("=" not in text or Path(text).exists()):
        return _read_all_entries(Path(text), inputs)
    known = known_names(inputs)
    raise RunError(
        f"--input {text[:80]}: write NAME=FILE.npy, NAME=FILE.npz, FILE.npz or NAME=NUMBER; the inputs are {known}"
    )


def _parse_number(text: str, value: Value) -> NDArray[Any]:
    """Return a number as an array of the input's spec. Raises RunError unless the input has one element."""
    spec, what = value.spec, f"--input {printable(value.name)}={text}"
    if not isinstance(spec, TensorSpec) or spec.size != 1 or is_packed(spec):
        raise RunError(f"{what}: the input is {value.spec}, not one number; pass a .npy or .npz file")
    try:
        return parse_numbers(text, NUMPY[spec.dtype]).reshape(spec.shape)
    except ValueError:
        raise RunError(f"{what}: not a number of type {spec.dtype}") from None


def _read_npy_file(path: Path, name: str, inputs: Mapping[str, Value]) -> NDArray[Any]:
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            return _read_array(stream, size, inputs[name], str(path))
    except OSError as error:
        raise _unreadable_error(path, error) from None


def _read_named_entry(path: Path, name: str, inputs: Mapping[str, Value]) -> NDArray[Any]:
    """Return the archive's entry named after the input, or the only entry. Raises RunError if neither exists."""
    entries = _list_entries(path)
    entry = f"{name}{ENTRY_SUFFIX}" if f"{name}{ENTRY_SUFFIX}" in entries else next(iter(entries), "")
    if not entry or (len(entries) > 1 and entry != f"{name}{ENTRY_SUFFIX}"):
        listed = ", ".join(repr(printable(entry)) for entry in list(entries)[:MAX_LISTED]) or "nothing"
        raise RunError(f"{path}: has no array {printable(name)!r}; it holds {listed}")
    return _read_entry(path, entries[entry], inputs[name])


def _read_all_entries(path: Path, inputs: Mapping[str, Value]) -> Arrays:
    """Return all arrays of an archive by input name. Raises RunError for an entry that is not an input."""
    arrays = {}
    for entry, about in _list_entries(path).items():
        name = entry.removesuffix(ENTRY_SUFFIX)
        if name not in inputs:
            known = known_names(inputs)
            raise RunError(f"{path}: {printable(name)!r} is not an input; the inputs are {known}")
        arrays[name] = _read_entry(path, about, inputs[name])
    return arrays


def _list_entries(path: Path) -> dict[str, zipfile.ZipInfo]:
    """Return the entries of an archive by name. Raises RunError for another file, and for one with bytes in front."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(ARCHIVE_BEGINNINGS[0]))
        if begin not in ARCHIVE_BEGINNINGS:
            raise RunError(f"{path}: begins with {begin!r}, and a .npz file is a zip: save arrays with numpy.savez")
        with zipfile.ZipFile(path) as archive:
            return {about.filename: about for about in archive.infolist()}
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise _unreadable_error(path, error) from None


def _read_entry(path: Path, about: zipfile.ZipInfo, value: Value) -> NDArray[Any]:
    where = f"{path}, {printable(about.filename)}"
    try:
        with zipfile.ZipFile(path) as archive, archive.open(about) as stream:
            return _read_array(stream, about.file_size, value, where)
    except (OSError, EOFError, zipfile.BadZipFile, ZlibError, NotImplementedError, RuntimeError) as error:
        raise _unreadable_error(where, error) from None


def _read_array(stream: IO[bytes], size: int, value: Value, where: str) -> NDArray[Any]:
    """Return the array of a .npy stream of `size` bytes. The elements are read only if the header matches `value`."""
    try:
        version = npy.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise RunError(f"{where}: has version {version} of the .npy format; save plain arrays with numpy.save")
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_columns, dtype = header(stream)
    except (ValueError, EOFError, SyntaxError, RecursionError, MemoryError) as error:
        raise RunError(f"{where}: not a .npy file: {str(error)[:200]}") from None
    if dtype.hasobject or dtype.itemsize == 0:
        raise RunError(f"{where}: holds {dtype} elements, which are not read from files")
    kind = _require_matching_header(value, shape, dtype, where)
    nbytes = prod(shape) * dtype.itemsize
    if any(extent < 0 for extent in shape) or nbytes > size - stream.tell():
        raise RunError(f"{where}: claims {dtype}{list(shape)}, {nbytes:,} bytes, but the file is shorter")
    array = np.frombuffer(stream.read(nbytes), dtype).reshape(shape, order="F" if by_columns else "C")
    return array.view(kind)


def _require_matching_header(value: Value, shape: tuple[int, ...], dtype: np.dtype[Any], where: str) -> np.dtype[Any]:
    """Return the NumPy type of the elements. Raises RunError unless element type and shape match the input."""
    spec = value.spec
    if not isinstance(spec, TensorSpec):
        if prod(shape) * dtype.itemsize > MAX_UNPLANNED_BYTES:
            raise RunError(f"{where}: claims {dtype}{list(shape)}, more than {MAX_UNPLANNED_BYTES:,} bytes")
        return dtype
    kind = NUMPY[spec.dtype]
    raw = (
        dtype.kind == "V" and dtype.names is None and dtype.itemsize == kind.itemsize
    )  # raw bytes, for types unknown to NumPy
    if shape != spec.shape or (dtype != kind and not raw):
        raise RunError(f"{where}: must be {spec}, {kind}{list(spec.shape)}, not {dtype}{list(shape)}")
    return kind


def _unreadable_error(where: object, error: Exception) -> RunError:
    return RunError(f"{where}: cannot be read: {getattr(error, 'strerror', None) or error}")
