"""`.pt2` files, as written by `torch.export.save`: a program in JSON, and the bytes of its tensors.

A file may come from an attacker. PyTorch's own reader unpickles, imports modules named by the file, and evaluates
expressions of the file. Sublet therefore uses a reader of its own: `pt2_schema.py` checks the JSON, and
`pt2_program.py` builds the program.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.files import parse_json
from sublet.integrations.torch.reader.exported_program import from_exported
from sublet.integrations.torch.reader.pt2_program import Pt2Program, build_program
from sublet.integrations.torch.reader.pt2_schema import Payload, check_json, tensor_over_bytes
from sublet.ir.model import Model

MAX_JSON_BYTES = 64 << 20
"""Maximum bytes of a program in JSON. A program of 50,000 operators has about 64 MiB."""

MAX_JSON_VALUES = 2 << 20
"""Maximum JSON values in a program; 2 M values take at most about 500 MB."""

ZIP_MAGIC = b"PK\x03\x04"
"""The first bytes of a zip file. `zipfile` finds a zip behind any content, even behind a library of machine code."""

CONFIG_FILES = {"weights": "model_weights_config.json", "constants": "model_constants_config.json"}


ARCHIVE_ERRORS = (OSError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, OverflowError)
"""Errors raised by zipfile for damaged archives: names with bad encoding, packed or locked entries, wrong sizes."""


def read_archive(path: Path) -> Pt2Program:
    """Return the program in a file. Raises ModelError for a file other than a `.pt2` file, and for an unsafe file."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(ZIP_MAGIC))
        if begin != ZIP_MAGIC:
            raise ModelError(f"{path}: begins with {begin!r}, and a .pt2 file is a zip that begins with {ZIP_MAGIC!r}")
        archive = zipfile.ZipFile(path)
    except ARCHIVE_ERRORS as error:
        raise ModelError(f"{path}: cannot be read as a .pt2 file: {error}") from None
    with archive:
        return _read_program(_ArchiveEntries(archive, path.name))


class _ArchiveEntries:
    """The entries of a `.pt2` archive, stored uncompressed."""

    def __init__(self, archive: zipfile.ZipFile, where: str) -> None:
        self._archive, self.where = archive, where
        self._entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}

    def bytes_of(self, name: str, most: int | None = None) -> bytes:
        """Return the content of an entry. Raises ModelError for a missing, compressed or too long entry."""
        entry = self._entries.get(name)
        if entry is None:
            raise ModelError(f"{self.where}: has no {name}: it is no program that torch.export.save wrote")
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ModelError(f"{self.where}: {name} is compressed, which torch.export.save does not do")
        if most is not None and entry.file_size > most:
            raise ModelError(f"{self.where}: {name} has {entry.file_size} bytes; more than {most} are not read")
        try:
            return self._archive.read(entry)
        except ARCHIVE_ERRORS as error:
            raise ModelError(f"{self.where}: {name} cannot be read: {error}") from None

    def json_of(self, name: str) -> Any:
        """Return the decoded JSON of an entry."""
        return parse_json(self.bytes_of(name, MAX_JSON_BYTES), f"{self.where}: {name}", ModelError, MAX_JSON_VALUES)


def _read_program(entries: _ArchiveEntries) -> Pt2Program:
    """Read the JSON and the tensors, and build the program."""
    model = "models/model.json"
    record = check_json(entries.json_of(model), "program", f"{entries.where}: {model}")
    payloads = {
        name: payload
        for kind, config in CONFIG_FILES.items()
        for name, payload in _read_payloads(entries, kind, config)
    }
    return build_program(record, payloads, entries.where)


def _read_payloads(entries: _ArchiveEntries, kind: str, config: str) -> Iterator[tuple[str, Payload]]:
    """Yield the name and the content of each tensor in a directory of the archive.

    Raises ModelError for a pickled tensor.
    """
    where = f"{entries.where}: data/{kind}/{config}"
    for name, record in check_json(entries.json_of(f"data/{kind}/{config}"), "payloads", where)["config"].items():
        if record["use_pickle"] or not record["path_name"].startswith(("weight_", "tensor_")):
            raise ModelError(f"{entries.where}: {name[:80]!r} is stored as a pickle, which is never loaded")
        if record["tensor_meta"] is None:
            raise ModelError(f"{entries.where}: {name[:80]!r} has no type and shape")
        content = entries.bytes_of(f"data/{kind}/{record['path_name']}")
        tensor = tensor_over_bytes(content, record["tensor_meta"], f"{entries.where}: the tensor {name[:80]!r}")
        yield name, Payload(tensor, record["is_param"])


def read_file(path: Path, dims: Mapping[str, int] | None, optimize: str, assume: Mapping[str, str]) -> Model:
    """Read a `.pt2` file, which declares all shapes. Raises ModelError for a malformed or unsafe file."""
    program = read_archive(path)
    return from_exported(program.exported, path.stem, program.weights, program.inputs)
