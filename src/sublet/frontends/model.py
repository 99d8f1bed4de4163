"""Any model file Sublet reads, by its suffix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sublet.errors import ModelError
from sublet.files import read_text
from sublet.frontends.onnx.model import load
from sublet.ir.graph import Graph
from sublet.ir.text import parse

ONNX_SUFFIX = ".onnx"
TEXT_SUFFIX = ".sublet"


@dataclass(frozen=True)
class Model:
    """A graph, and the dimension bindings it was read with."""

    graph: Graph
    dims: Mapping[str, int]


def read_model(path: str | Path, dims: Mapping[str, int] | None = None) -> Model:
    """Read an ONNX model (.onnx) or the text form of a graph (.sublet).

    `dims` binds symbolic dimensions of an ONNX model; a graph in text form has none.
    Raises ModelError when the file cannot be read or understood, TextError for a mistake in the text.
    """
    path = Path(path)
    if path.suffix == ONNX_SUFFIX:
        imported = load(path, dims)
        return Model(imported.graph, imported.dims)
    if path.suffix == TEXT_SUFFIX:
        if dims:
            raise ModelError(f"{path} has no symbolic dimensions to bind: drop --dim {', --dim '.join(dims)}")
        return Model(parse(read_text(path, ModelError), str(path)), {})
    raise ModelError(f"{path} is not a known kind of model: expected {ONNX_SUFFIX} or {TEXT_SUFFIX}")
