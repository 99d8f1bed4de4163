"""Any model file Sublet reads, by its suffix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from sublet.errors import ModelError
from sublet.files import read_text
from sublet.frontends.onnx.model import Imported, load
from sublet.ir.graph import Graph
from sublet.ir.text import parse

ONNX_SUFFIX = ".onnx"
TEXT_SUFFIX = ".sublet"


class Constant(Protocol):
    """The content of a weight, read when it is asked for."""

    def array(self) -> NDArray[Any]:
        """The elements."""


@dataclass(frozen=True)
class Model:
    """A graph with what is needed to plan and run it.

    dims      the dimension bindings it was read with
    weights   the contents of `graph.weights` by name; those a text form declares have none
    inputs, outputs   names in the file, in the order of the graph's inputs and outputs
    opsets    for an ONNX model the version of each operator set, "" for the default domain
    """

    graph: Graph
    dims: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, Constant] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    opsets: Mapping[str, int] = field(default_factory=dict)


def model_of(imported: Imported) -> Model:
    """An imported ONNX model as any other model."""
    return Model(imported.graph, imported.dims, imported.weights, imported.inputs, imported.outputs, imported.opsets)


def read_model(path: str | Path, dims: Mapping[str, int] | None = None) -> Model:
    """Read an ONNX model (.onnx) or the text form of a graph (.sublet).

    `dims` binds symbolic dimensions of an ONNX model; a graph in text form has none.
    Raises ModelError when the file cannot be read or understood, TextError for a mistake in the text.
    """
    path = Path(path)
    if path.suffix == ONNX_SUFFIX:
        return model_of(load(path, dims))
    if path.suffix == TEXT_SUFFIX:
        if dims:
            raise ModelError(f"{path} has no symbolic dimensions to bind: drop --dim {', --dim '.join(dims)}")
        return Model(parse(read_text(path, ModelError), str(path)))
    raise ModelError(f"{path} is not a known kind of model: expected {ONNX_SUFFIX} or {TEXT_SUFFIX}")
