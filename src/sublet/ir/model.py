"""A model: a graph with what is needed to plan and run it, wherever it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from sublet.base.errors import Finding, ProblemError
from sublet.ir.graph import Graph
from sublet.ir.recipe import PLAIN, Recipe


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
    recipe    how its graph comes from its file
    constants weights that the program itself contains: nobody trains or saves them
    warnings  what the file claims and is not so, and what must not run
    """

    graph: Graph
    dims: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, Constant] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    opsets: Mapping[str, int] = field(default_factory=dict)
    max_trips: Mapping[str, int] = field(default_factory=dict)
    remark: str = ""
    recipe: Recipe = PLAIN
    warnings: tuple[Finding, ...] = ()
    constants: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"<Model of {self.graph!r}>"


@runtime_checkable
class Written(Protocol):
    """A graph that is being written in Python (`sublet.Graph`)."""

    def model(self) -> Model:
        """What has been written so far."""


def as_model(source: Model | Graph | Written) -> Model:
    """Any of the forms a network has in Python as a model. Raises ProblemError for anything else."""
    if isinstance(source, Model):
        return source
    if isinstance(source, Graph):
        return Model(source)
    if isinstance(source, Written):
        return source.model()
    raise ProblemError(
        f"{type(source).__name__} is no network: give a Graph, or a Model such as `sublet.read_model` returns"
    )
