"""A model: a graph with all data needed to plan and run the graph, independent of the source format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sublet.base.errors import Finding, ModelError, ProblemError
from sublet.base.formatting import known_names, printable
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.ir.graph import Graph, Value
from sublet.ir.recipe import PLAIN, Recipe


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

    def __repr__(self) -> str:
        return f"<Model of {self.graph!r}>"


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
    raise ProblemError(f"{type(source).__name__} is no network: pass a Graph, or a Model from `sublet.read_model`")


# Declared state: inputs updated by an output from run to run.


@dataclass(frozen=True)
class Zeros:
    """The content of an input of zeros."""

    spec: TensorSpec

    def array(self) -> NDArray[Any]:
        """Return the zeros."""
        return np.zeros(self.spec.shape, NUMPY[self.spec.dtype])


def with_state(model: Model, state: Mapping[str, str]) -> Model:
    """Return the model with inputs updated by outputs: `state` maps the name of each input to the name of an output.

    An input of the state starts with zeros, or with the default of the file, and takes the content of the output at the
    end of each run. Raises ModelError for a name without an input or output, and for two tensors of different type.
    """
    if not state or dict(model.recipe.state) == dict(state):
        return model
    inputs = dict(zip(model.inputs or [value.name for value in model.graph.inputs], model.graph.inputs, strict=True))
    outputs = dict(
        zip(model.outputs or [value.name for value in model.graph.outputs], model.graph.outputs, strict=True)
    )
    if model.recipe.state:
        raise ModelError(f"the model has the state {dict(model.recipe.state)} already: read the model again")
    updates, starts = list[tuple[Value, Value]](), dict[str, Constant]()
    for name, result in state.items():
        what = f"state {printable(name)}={printable(result)}"
        if name not in inputs:
            raise ModelError(f"{what}: no input {printable(name)!r}; the inputs are {known_names(inputs)}")
        if result not in outputs:
            raise ModelError(f"{what}: no output {printable(result)!r}; the outputs are {known_names(outputs)}")
        target, source = inputs[name], outputs[result]
        if target.spec != source.spec or not isinstance(target.spec, TensorSpec):
            raise ModelError(
                f"{what}: the input is {target.spec}, the output {source.spec}; "
                "both must have one type and known extents"
            )
        if target in model.graph.outputs:
            raise ModelError(f"{what}: the input is an output too, and would have the old and the new content")
        updates.append((target, source))
        starts[name] = Zeros(target.spec)
    graph = replace(model.graph, updates=(*model.graph.updates, *updates))
    recipe = replace(model.recipe, state=tuple(state.items()))
    return replace(model, graph=graph, defaults={**starts, **model.defaults}, recipe=recipe)
