"""Any model file Sublet reads, by its suffix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from sublet.errors import ModelError
from sublet.files import read_text
from sublet.frontends.onnx.model import Imported, load
from sublet.frontends.trips import Trips, trips_of, with_max_trips
from sublet.ir.graph import Graph
from sublet.ir.text import parse

ONNX_SUFFIX = ".onnx"
TEXT_SUFFIX = ".sublet"


def is_onnx(path: Path) -> bool:
    """Whether a file is an ONNX model, by its suffix in any case."""
    return path.suffix.lower() == ONNX_SUFFIX


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
    max_trips the declared maxima of rounds it was read with, by loop; "" stands for every loop
    remark    what its reader should be told, as that an optimiser refused it
    """

    graph: Graph
    dims: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, Constant] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    opsets: Mapping[str, int] = field(default_factory=dict)
    max_trips: Mapping[str, int] = field(default_factory=dict)
    remark: str = ""


def model_of(imported: Imported) -> Model:
    """An imported ONNX model as any other model."""
    return Model(
        imported.graph,
        imported.dims,
        imported.weights,
        imported.inputs,
        imported.outputs,
        imported.opsets,
        remark=imported.remark,
    )


def bounded(model: Model, max_trips: Trips) -> Model:
    """The model with declared maxima of rounds, see `trips`. Raises ModelError for one that makes no sense."""
    by_loop = trips_of(max_trips)
    return replace(model, graph=with_max_trips(model.graph, by_loop), max_trips=by_loop) if by_loop else model


def read_model(path: str | Path, dims: Mapping[str, int] | None = None, *, max_trips: Trips = None) -> Model:
    """Read an ONNX model (.onnx) or the text form of a graph (.sublet).

    `dims` binds symbolic dimensions of an ONNX model; a graph in text form has none. `max_trips` declares how many
    rounds loops make at most, for all of them or by the name of a loop or of one of its outputs: what such a loop
    stacks for an output of the model is planned, and a run that goes on beyond it is a RunError.
    Raises ModelError when the file cannot be read or understood, TextError for a mistake in the text.
    """
    return bounded(_read(Path(path), dims), max_trips)


def _read(path: Path, dims: Mapping[str, int] | None) -> Model:
    if is_onnx(path):
        return model_of(load(path, dims))
    if path.suffix.lower() == TEXT_SUFFIX:
        if dims:
            raise ModelError(f"{path} has no symbolic dimensions to bind: drop --dim {', --dim '.join(dims)}")
        return Model(parse(read_text(path, ModelError), str(path)))
    raise ModelError(f"{path} is not a known kind of model: expected {ONNX_SUFFIX} or {TEXT_SUFFIX}")
