"""A model: a graph with all data needed to plan and run the graph, independent of the source format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from sublet.base.boxes import Range
from sublet.base.errors import Finding, ProblemError
from sublet.ir.graph import Graph, Value
from sublet.ir.recipe import PLAIN, Recipe

REFUSED_POINTS = "refused-points"
"""The rule of warnings on points of ranges that a node refuses."""

OPEN_EXTENT = "open-extent"
"""The rule of warnings on an input with open extents, planned at the extents stored in the file."""

CONTRADICTION = "contradiction"
"""The rule of warnings on a node that cannot run; a run may take another branch."""


class Constant(Protocol):
    """The content of a weight, read on request."""

    def array(self) -> NDArray[Any]:
        """Return the elements."""


@dataclass(frozen=True)
class Model:
    """A graph with all data needed to plan and run the graph.

    dims      the dimension bindings used to read the model
    weights   the contents of `graph.weights` by name; weights declared by a text form have none
    inputs, outputs   names in the file, in the order of the graph's inputs and outputs
    opsets    for an ONNX model the version of each operator set, "" for the default domain
    max_trips the declared maximum trip counts used to read the model, by loop; "" means every loop
    remark    a note of the reader for the user, for example that an optimiser refused the model
    recipe    how the graph was derived from the file
    defaults  the contents of inputs that a call may leave out, by name
    fixed     the inputs of the file that are constants of the graph, by name, each with a remark for the user
    constants weights contained in the program itself: neither trained nor saved
    ranges    the ranges of dimensions; extents of the graph are then expressions, see `base.extents`
    warnings  false claims of the file, and parts of the model that must not run
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
    defaults: Mapping[str, Constant] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    ranges: tuple[Range, ...] = ()

    def __repr__(self) -> str:
        return f"<Model of {self.graph!r}>"

    @property
    def inputs_by_name(self) -> dict[str, Value]:
        """The inputs of the graph by their names in the file."""
        values = self.graph.inputs
        return dict(zip(self.inputs or [value.name for value in values], values, strict=True))

    @property
    def outputs_by_name(self) -> dict[str, Value]:
        """The outputs of the graph by their names in the file."""
        values = self.graph.outputs
        return dict(zip(self.outputs or [value.name for value in values], values, strict=True))


@runtime_checkable
class GraphInPython(Protocol):
    """A graph under construction in Python (`sublet.Graph`)."""

    def model(self) -> Model:
        """Return the graph built until now as a model."""


def as_model(source: Model | Graph | GraphInPython) -> Model:
    """Return a network as a `Model`, from any of its Python forms. Raises ProblemError for any other object."""
    if isinstance(source, Model):
        return source
    if isinstance(source, Graph):
        return Model(source)
    if isinstance(source, GraphInPython):
        return source.model()
    wanted = "its `.graph`" if "graph" in dir(source) else "a Graph, or a Model from `sublet.read_model`"
    raise ProblemError(f"{type(source).__name__} is no network: pass {wanted}")
