"""`.pt2` files, as `torch.export.save` writes them: a program in JSON, and the bytes of its tensors.

A file is from a stranger. PyTorch's own reader unpickles, and evaluates expressions; here nothing is unpickled, and a
program that has expressions, operators outside of ATen or more tensors than bytes is refused before PyTorch sees it.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.extras import require
from sublet.frontends.torch.exported import first_line
from sublet.frontends.torch.tensors import torch

ALLOWED = re.compile(
    r"torch\.ops\.aten\.\w+\.\w+|torch\.ops\.higher_order\.(cond|while_loop|scan|map_impl|wrap_with_set_grad_enabled)"
    r"|torch\.ops\._c10d_functional\.\w+\.\w+|_operator\.getitem"
)
"""The operators that a program may call."""

NUMBER = re.compile(r"-?\d{1,18}")
MOST_JSON = 64 << 20
"""Bytes of a program in JSON."""

KINDS = {"weights": "model_weights_config.json", "constants": "model_constants_config.json"}


DAMAGED = (OSError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, OverflowError)
"""What zipfile raises for archives that are none: names that are no text, packed or locked entries, sizes that lie."""


def read_archive(path: Path) -> Any:
    """The program in a file, as an ExportedProgram. Raises ModelError for a file that is none, or is not safe."""
    try:
        archive = zipfile.ZipFile(path)
    except DAMAGED as error:
        raise ModelError(f"{path}: cannot be read as a .pt2 file: {error}") from None
    with archive:
        return _program(_Entries(archive, path.name))


class _Entries:
    """The entries of an archive, which lie in it as they are."""

    def __init__(self, archive: zipfile.ZipFile, where: str) -> None:
        self._archive, self.where = archive, where
        self._entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}

    def bytes_of(self, name: str, most: int | None = None) -> bytes:
        """The content of an entry. Raises ModelError when it is missing, packed or too long."""
        entry = self._entries.get(name)
        if entry is None:
            raise ModelError(f"{self.where}: has no {name}: it is no program that torch.export.save wrote")
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ModelError(f"{self.where}: {name} is compressed, which torch.export.save does not do")
        if most is not None and entry.file_size > most:
            raise ModelError(f"{self.where}: {name} has {entry.file_size} bytes; more than {most} are not read")
        try:
            return self._archive.read(entry)
        except DAMAGED as error:
            raise ModelError(f"{self.where}: {name} cannot be read: {error}") from None

    def json_of(self, name: str) -> Any:
        """The content of an entry in JSON."""
        try:
            return json.loads(self.bytes_of(name, MOST_JSON))
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{self.where}: {name} is no JSON: {error}") from None


def _program(entries: _Entries) -> Any:
    record = entries.json_of("models/model.json")
    for found in _records(record, entries.where):
        _safe(found, entries.where)
    tensors = {kind: dict(_tensors(entries, kind, config)) for kind, config in KINDS.items()}
    serialize = require("torch._export.serde.serialize", extra="torch")
    artifact = serialize.SerializedArtifact(json.dumps(record).encode(), tensors["weights"], tensors["constants"], None)
    try:
        return serialize.deserialize(artifact)
    except Exception as error:  # whatever PyTorch's reader makes of a program that is none
        raise ModelError(f"{entries.where}: PyTorch cannot read the program: {first_line(error)}") from None


def _records(found: Any, where: str, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Every object of the program."""
    if depth > 200:
        raise ModelError(f"{where}: graphs in graphs, more than 200 deep")
    if isinstance(found, dict):
        yield found
    for inner in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from _records(inner, where, depth + 1)


def _safe(record: dict[str, Any], where: str) -> None:
    """Leave out what would be evaluated; refuse what only evaluation could read."""
    expression = record.get("expr_str")
    if expression is not None and not (isinstance(expression, str) and NUMBER.fullmatch(expression)):
        raise ModelError(f"{where}: the extent {str(expression)[:40]!r} is open: export with fixed extents")
    target = record.get("target")
    if "inputs" in record and isinstance(target, str) and not ALLOWED.fullmatch(target):
        raise ModelError(f"{where}: calls {target[:80]!r}, which is not planned")
    metadata = record.get("metadata")
    if isinstance(metadata, dict):
        record["metadata"] = {key: each for key, each in metadata.items() if key == "stack_trace"}


def _tensors(entries: _Entries, kind: str, config: str) -> Iterator[tuple[str, Any]]:
    record = entries.json_of(f"data/{kind}/{config}")
    payloads = record.get("config") if isinstance(record, dict) else None
    if not isinstance(payloads, dict):
        raise ModelError(f"{entries.where}: data/{kind}/{config} lists no tensors")
    for name, payload in payloads.items():
        try:
            yield name, _tensor(entries, kind, name, payload)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ModelError(f"{entries.where}: the tensor {name[:80]!r} cannot be read: {error}") from None


def _tensor(entries: _Entries, kind: str, name: str, payload: Mapping[str, Any]) -> Any:
    """A tensor over a copy of its bytes."""
    if payload["use_pickle"] or not payload["path_name"].startswith(("weight_", "tensor_")):
        raise ModelError(f"{entries.where}: {name[:80]!r} is stored as a pickle, which is never loaded")
    t, meta = torch(), payload["tensor_meta"]
    serialize = require("torch._export.serde.serialize", extra="torch")
    dtype = serialize.deserialize_scalar_type(meta["dtype"])
    size, stride = ([int(each["as_int"]) for each in meta[key]] for key in ("sizes", "strides"))
    offset = int(meta["storage_offset"]["as_int"])
    content = bytearray(entries.bytes_of(f"data/{kind}/{payload['path_name']}"))
    count = len(content) // dtype.itemsize
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if prod(size) else offset - 1
    if min([offset, 0, *size, *stride]) < 0 or last >= count:
        raise ModelError(f"{entries.where}: {name[:80]!r} is said to be longer than its {len(content)} bytes")
    flat = t.frombuffer(content, dtype=dtype) if count else t.empty(0, dtype=dtype)
    tensor = flat.as_strided(size, stride, offset)
    return t.nn.Parameter(tensor, requires_grad=False) if payload["is_param"] else tensor
