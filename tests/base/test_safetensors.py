"""The safetensors format: files of others, files for others, and files that lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sublet.base.errors import ModelError
from sublet.base.files import write_parts
from sublet.base.safetensors import TYPES, Tensors, write_tensors

Header = dict[str, Any]


def written(path: Path, header: Header | bytes, data: bytes = b"", *, size: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if size is None else size).to_bytes(8, "little") + text + data)
    return path


def one(**changes: Any) -> Header:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


def two(first: list[int], second: list[int]) -> Header:
    return {
        name: {"dtype": "U8", "shape": [at[1] - at[0]], "data_offsets": at}
        for name, at in (("a", first), ("b", second))
    }


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (2, 1, 3)])
def test_what_is_written_is_read(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    bits = np.random.default_rng(0).integers(0, 2, (*shape, TYPES[name].itemsize), np.uint8)
    array = np.ascontiguousarray(bits).reshape(-1).view(TYPES[name]).reshape(shape)
    write_tensors(tmp_path / "w", {"array": array, "odd": np.ones(3, np.uint8), "reversed": np.arange(9)[::-2]})
    found = Tensors(tmp_path / "w")
    assert found["array"].dtype == array.dtype
    assert found["array"].shape == shape
    assert found["array"].tobytes() == array.tobytes()
    assert not found["array"].flags.writeable
    assert found["reversed"].tolist() == [8, 6, 4, 2, 0]
    assert list(found) == sorted(found, key=lambda name: (-found[name].dtype.itemsize, name))


def test_the_library_of_the_format_reads_what_we_write_and_we_what_it_writes(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="the library of the format is not installed")
    random = np.random.default_rng(0)
    arrays = {f"{kind}.{i}": random.integers(0, 99, (3, i)).astype(kind) for kind in "fdBqe" for i in range(3)}
    write_tensors(tmp_path / "ours", arrays)
    library.save_file(arrays, tmp_path / "theirs", metadata={"by": "them"})
    for read in (library.load_file(tmp_path / "ours"), Tensors(tmp_path / "theirs")):
        assert read.keys() == arrays.keys()
        for name, array in arrays.items():
            assert read[name].dtype == array.dtype
            np.testing.assert_array_equal(read[name], array)


HOSTILE: list[tuple[str, Any, bytes, int | None, str]] = [
    ("a header longer than the file", one(), b"", 10**6, "too few for the declared header"),
    ("a header of 2^64 bytes", one(), b"", 2**64 - 1, "too few for the declared header"),
    ("cut off", one(), bytes(7), None, "its tensors take 8 bytes, but the file has 7 for tensors"),
    ("too long", one(), bytes(9), None, "its tensors take 8 bytes, but the file has 9 for tensors"),
    ("no JSON", b"{not json", bytes(8), None, "its header: is not valid JSON"),
    ("no text", b"\xff\xfe\x00", bytes(8), None, "its header: is not valid JSON"),
    ("nested", b"[" * 100_000, bytes(8), None, "its header: is not valid JSON"),
    ("a number of a million digits", b'{"w":' + b"9" * 10**6 + b"}", b"", None, "its header: is not valid JSON"),
    ("a list", b"[1]", bytes(8), None, "no JSON object"),
    ("a name twice", b'{"w":1,"w":2}', bytes(8), None, "occurs twice"),
    ("a tensor that is a number", {"w": 3}, bytes(8), None, "'w' must have the fields dtype, shape and data_offsets"),
    ("something else", one(strides=[1]), bytes(8), None, "data_offsets only"),
    ("no type", one(dtype="F31"), bytes(8), None, "the type 'F31', which Sublet does not know"),
    ("types in a list", one(dtype=["F32"]), bytes(8), None, "which Sublet does not know"),
    ("negative extents", one(shape=[-2, -1]), bytes(8), None, "integers from 0 on"),
    ("extents that are no integers", one(shape=[2.0]), bytes(8), None, "integers from 0 on"),
    ("extents that are truth values", one(shape=[True, 2]), bytes(8), None, "integers from 0 on"),
    ("too many axes", one(shape=[1] * 65 + [2]), bytes(8), None, "integers from 0 on"),
    (
        "extents that overflow",
        one(shape=[2**62, 2**62, 2]),
        bytes(8),
        None,
        "takes .* bytes, but its data_offsets are 0 to 8",
    ),
    ("offsets backwards", one(data_offsets=[8, 0]), bytes(8), None, "takes 8 bytes, but its data_offsets are 8 to 0"),
    ("offsets beyond the end", one(data_offsets=[8, 16]), bytes(8), None, "begins at 8: it leaves the bytes from 0 on"),
    ("three offsets", one(data_offsets=[0, 8, 8]), bytes(8), None, "integers from 0 on"),
    ("a shape that lies", one(shape=[3]), bytes(8), None, "takes 12 bytes, but its data_offsets are 0 to 8"),
    ("an overlap", two([0, 6], [4, 8]), bytes(8), None, "'b' begins at 4: it overlaps another"),
    ("the same bytes twice", two([0, 8], [0, 8]), bytes(8), None, "begins at 0: it overlaps another"),
    ("a hole", two([0, 3], [5, 8]), bytes(8), None, "'b' begins at 5: it leaves the bytes from 3 on unused"),
    ("colours for a terminal", {"\x1b[31mw": {"dtype": 3}}, b"", None, r"tensor '[^\x1b]*w' must have"),
]


@pytest.mark.parametrize(("header", "data", "size", "message"), [h[1:] for h in HOSTILE], ids=[h[0] for h in HOSTILE])
def test_a_file_that_lies_is_one_error(
    header: Any, data: bytes, size: int | None, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "w.safetensors", header, data, size=size)
    with pytest.raises(ModelError, match=message) as caught:
        Tensors(path)
    assert str(caught.value).startswith(f"{path}: no valid safetensors file: ")
    assert "\n" not in str(caught.value)


def test_a_header_has_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "w"
    with path.open("wb") as file:
        file.write((10**9).to_bytes(8, "little"))
        file.truncate(2 * 10**9)
    with pytest.raises(ModelError, match="more than 100,000,000"):
        Tensors(path)


@pytest.mark.parametrize("content", [b"", b"1234567"])
def test_hardly_a_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="w: "):
        Tensors(path)
    for unreadable in (tmp_path, path / "w"):
        with pytest.raises(ModelError, match=r"cannot be read: (Is|Not) a directory"):
            Tensors(unreadable)


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    """A byte changed or cut off anywhere."""
    path = tmp_path / "w"
    write_tensors(path, {"a": np.arange(5, dtype=np.float32), "b": np.ones((2, 3), np.uint8)})
    whole, random = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(500):
        damaged = bytearray(whole)
        damaged[random.integers(len(whole))] = random.integers(256)
        path.write_bytes(damaged if random.integers(2) else damaged[: random.integers(len(whole))])
        try:
            for array in Tensors(path).values():
                array.sum()
        except ModelError:
            refused += 1
    assert 250 < refused < 500


def test_a_failure_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "w"
    write_tensors(path, {"a": np.ones(3)})
    before = path.read_bytes()

    def parts() -> Any:
        yield b"half"
        raise RuntimeError("power")

    with pytest.raises(RuntimeError, match="power"):
        write_parts(path, parts())
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["w"]
