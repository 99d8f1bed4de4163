"""The base class of modules: a record of configuration, called on tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from math import prod, sqrt
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.nn.graph import EagerGraph, Graph, graph_of
from sublet.nn.source_location import Draw, at_line
from sublet.nn.tensor import Tensor, describe

# Initial distributions of parameters: functions of a generator and a shape.


def uniform(bound: float) -> Draw:
    """Return a function drawing numbers uniformly from [-bound, bound)."""
    return lambda random, shape: random.uniform(-bound, bound, shape)


def normal(deviation: float) -> Draw:
    """Return a function drawing numbers from a normal distribution with mean 0 and the given standard deviation."""
    return lambda random, shape: random.normal(0, deviation, shape)


def uniform_by_fan_in(extents: tuple[int, ...]) -> Draw:
    """Return a function drawing uniformly from +-1/sqrt(fan in), as PyTorch's layers do.

    `extents` are the factors of the fan in.
    """
    return uniform(1 / sqrt(max(1, prod(extents))))


def kaiming_uniform(gain: float = sqrt(2)) -> Draw:
    """Return a function drawing uniformly with the variance gain^2 / fan in, the default for ReLU (He et al., 2015).

    The fan in of a weight [units, I] is I, and of [channels, C, kernel...] the elements of [C, kernel...].
    """
    return lambda random, shape: uniform(gain * sqrt(3 / _fans(shape)[0]))(random, shape)


def kaiming_normal(gain: float = sqrt(2)) -> Draw:
    """Return a function drawing normally with the variance gain^2 / fan in, see `kaiming_uniform`."""
    return lambda random, shape: normal(gain / sqrt(_fans(shape)[0]))(random, shape)


def xavier_uniform(gain: float = 1.0) -> Draw:
    """Return a function drawing uniformly with the variance 2 gain^2 / (fan in + fan out) (Glorot and Bengio, 2010)."""
    return lambda random, shape: uniform(gain * sqrt(6 / sum(_fans(shape))))(random, shape)


def xavier_normal(gain: float = 1.0) -> Draw:
    """Return a function drawing normally with the variance 2 gain^2 / (fan in + fan out), see `xavier_uniform`."""
    return lambda random, shape: normal(gain * sqrt(2 / sum(_fans(shape))))(random, shape)


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the fan in and the fan out of a weight. Raises SpecError for fewer than two axes."""
    if len(shape) < 2:
        raise SpecError(at_line(f"a parameter {list(shape)} has no fan in: pass layers.uniform or layers.normal"))
    return max(1, prod(shape[1:])), max(1, prod((shape[0], *shape[2:])))


_graph_of_module: ContextVar[Graph | EagerGraph | None] = ContextVar("graph_of_module", default=None)
"""The graph of the module being called; None outside of modules."""


class Module:
    """A layer or network: created once, without arrays, and called on tensors of any graph.

        class Block(Module):
            def __init__(self, channels):
                self.conv, self.norm = Conv(channels, 3, bias=False), BatchNorm()

            def forward(self, x):
                return nn.relu(self.norm(self.conv(x)))

    Override `forward` with the computation. The parameters belong to the graph of the input tensors, named after the
    outer modules and the attributes holding the modules: "block/conv/weight". Called again on the same graph, a module
    shares its parameters. `name` replaces the attribute in the names; "" leaves the module out of the names of its
    parameters.
    """

    name: str | None = None

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the result for some tensors; subclasses override the method. Raises SpecError if not overridden."""
        raise SpecError(at_line(f"{type(self).__name__} computes nothing: write its `forward`"))

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Return the result of `forward` for some tensors, computed in the scope of the module.

        Arrays instead of tensors are possible inside another module, and then become constants.
        """
        first, outer = _first_tensor(inputs, named), _graph_of_module.get()
        if isinstance(first, np.ndarray) and outer is not None:
            inputs = tuple(outer.constant(one) if isinstance(one, np.ndarray) else one for one in inputs)
            named = {key: outer.constant(one) if isinstance(one, np.ndarray) else one for key, one in named.items()}
            first = _first_tensor(inputs, named)
        graph = graph_of(first)
        token = _graph_of_module.set(graph)
        try:
            with graph.module(self):
                return self.forward(*inputs, **named)
        finally:
            _graph_of_module.reset(token)

    @property
    def kind(self) -> str:
        """The default name, from the name of the class: "batch_norm" for BatchNorm."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(self).__name__).lower()

    def children(self) -> Iterator[tuple[str, object]]:
        """Yield the attributes with their names: "conv", or "blocks/0" for the items of a list or dict."""
        for name, attribute in vars(self).items():
            if isinstance(attribute, list | tuple):
                yield from ((f"{name}/{i}", one) for i, one in enumerate(attribute))
            elif isinstance(attribute, dict):
                yield from ((f"{name}/{key}", one) for key, one in attribute.items())
            else:
                yield name, attribute

    def graph_of(self, x: Tensor, axes: str) -> Graph | EagerGraph:
        """Return the graph of x. Raises SpecError unless x has the given axes, as "N C ..."; "..." is any number."""
        names = axes.split()
        graph = graph_of(x)
        if not (x.ndim >= len(names) - 1 if "..." in names else x.ndim == len(names)):
            raise SpecError(at_line(f"{type(self).__name__}: {describe(x)} must have the axes [{', '.join(names)}]"))
        return graph


def _first_tensor(inputs: Iterable[Any], named: dict[str, Any]) -> Any:
    """Return the first tensor among the inputs; without a tensor, the first input."""
    arguments = [*inputs, *named.values()]
    flat = [one for each in arguments for one in (each if isinstance(each, list | tuple) else (each,))]
    return next((one for one in flat if isinstance(one, Tensor)), arguments[0] if arguments else None)


# PyTorch's names of parameters, for loading and saving weights.

PARAMETER_NAMES = {"scale": "weight", "mean": "running_mean", "variance": "running_var"}
CELL = re.compile(r"(?:(.*)/)?(l\d+(?:_reverse)?)/(input_weight|hidden_weight|bias|hidden_bias)")
CELL_PARAMETER_NAMES = {
    "input_weight": "weight_ih",
    "hidden_weight": "weight_hh",
    "bias": "bias_ih",
    "hidden_bias": "bias_hh",
}
ATTENTION = re.compile(r"(?:(.*)/)?(qkv|out)/(weight|bias)")


def pytorch_name(name: str) -> str:
    """Return the name of a parameter or state in a PyTorch state_dict with equally named attributes.

    "layer1/0/bn1/scale" becomes "layer1.0.bn1.weight", "rnn/l0/hidden_weight" becomes "rnn.weight_hh_l0". Use the
    function as `sublet.load_weights(path, net, names=pytorch_name)`, with name "" for the outermost module.
    """
    outer: str | None
    cell, attention = CELL.fullmatch(name), ATTENTION.fullmatch(name)
    if cell:
        outer, last = cell[1], f"{CELL_PARAMETER_NAMES[cell[3]]}_{cell[2]}"
    elif attention:
        outer, last = attention[1], f"in_proj_{attention[3]}" if attention[2] == "qkv" else f"out_proj.{attention[3]}"
    else:
        outer, _, last = name.rpartition("/")
        last = PARAMETER_NAMES.get(last, last)
    return f"{outer.replace('/', '.')}.{last}" if outer else last
