"""A table of the layers of a network: weights, and the share of the arena."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from sublet.api.weights import HasWeights
from sublet.base.errors import SpecError
from sublet.base.formatting import human, printable
from sublet.base.ranges import holds, union_length
from sublet.base.tensor import TensorSpec
from sublet.ir.model import as_model
from sublet.nn.graph import Graph
from sublet.nn.modules.module import Module
from sublet.nn.tensor import Tensor
from sublet.plan import Placement
from sublet.planning.pipeline import plan_memory

GRADIENT_SCOPE = "grad/"


@dataclass(frozen=True)
class Layer:
    """The memory of one layer.

    weights       the number of elements of parameters and states
    weight_bytes  the bytes of parameters and states
    arena_bytes   the bytes of the union of all arena addresses of the layer's values; layers reuse addresses, so the
                  sum over layers exceeds the arena
    peak_bytes    the same, counting only the values live at the peak
    """

    name: str
    weights: int
    weight_bytes: int
    arena_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class Summary:
    """The layers of a network, in the order of their first computation; printed as a table.

    arena_bytes  the bytes of the arena; None for a network without a plan
    """

    name: str
    layers: tuple[Layer, ...]
    arena_bytes: int | None

    @property
    def weights(self) -> int:
        """The number of elements of all parameters and states."""
        return sum(layer.weights for layer in self.layers)

    def __str__(self) -> str:
        table = Table("layer", title=printable(self.name), title_justify="left")
        planned = self.arena_bytes is not None
        for heading in ("parameters and states", "bytes", *(("arena", "arena at peak") if planned else ())):
            table.add_column(heading, justify="right")
        nbytes, peak = (sum(getattr(one, what) for one in self.layers) for what in ("weight_bytes", "peak_bytes"))
        total = Layer("all", self.weights, nbytes, self.arena_bytes or 0, peak)
        for layer in (*self.layers, total):
            if layer is total:
                table.add_section()
            sizes = (layer.weight_bytes, layer.arena_bytes, layer.peak_bytes)[: 3 if planned else 1]
            table.add_row(printable(layer.name) or "-", f"{layer.weights:,}", *map(human, sizes))
        console = Console(file=io.StringIO(), width=120)
        console.print(table)
        return console.file.getvalue().rstrip()  # type: ignore[attr-defined, no-any-return]


def summary(network: Any, *examples: Any) -> Summary:
    """Return the weights and the arena bytes of each layer of a network.

    network   an executable or a jit function, with its plan; a graph or a model, planned as written; a module, written
              for evaluation on `examples`; a dynamic graph, with the weights created so far and without a plan
    examples  the inputs of a module: shapes of f32 tensors, arrays or tensors

    A layer is a scope of names; the gradients of a layer count as part of the layer. Raises SpecError for a module that
    cannot be called on the examples, ProblemError for an object other than a network.
    """
    if isinstance(network, Module):
        network = _written_module(network, examples)
    if isinstance(network, HasWeights) and not hasattr(network, "plan"):
        with network.weights.reading() as arrays:
            sizes = {name: (array.size, array.nbytes) for name, array in arrays.items()}
        return Summary("dynamic graph", _layers((), sizes, 0), None)
    if isinstance(network, HasWeights):
        plan, graph, names = network.plan, network.graph, set(network.weights)  # type: ignore[attr-defined]
    else:
        model = as_model(network)
        plan, graph, names = plan_memory(model.graph), model.graph, {*model.weights} - model.constants
    sizes = {
        one.name: (one.spec.size if isinstance(one.spec, TensorSpec) else 0, one.nbytes)
        for one in graph.weights
        if one.name in names
    }
    arenas = {storage.name for storage in plan.arenas}
    placed = [(one, one.region.storage in arenas) for one in plan.placements]
    return Summary(plan.graph, _layers(placed, sizes, plan.peak.point), plan.arena_bytes)


def _written_module(module: Module, examples: Sequence[Any]) -> Graph:
    """Return a graph with a call of a module on inputs like the examples. Raises SpecError without examples."""
    if not examples:
        raise SpecError(
            f"summary of the module {module.kind}: expected a shape or an example for each input, got none. Pass the "
            "shape, as in summary(net, (8, 3)), or an array"
        )
    graph = Graph(module.kind, training=False)
    inputs = []
    for i, example in enumerate(examples):
        shape, dtype = (example, "f32") if isinstance(example, tuple | list) else (example.shape, example.dtype)
        inputs.append(graph.input(f"input{i}", shape, dtype))
    results = module(*inputs)
    for i, one in enumerate(results if isinstance(results, tuple | list) else (results,)):
        if isinstance(one, Tensor):
            graph.output(f"output{i}", one)
    return graph


def _layers(
    placements: Iterable[tuple[Placement, bool]], weights: Mapping[str, tuple[int, int]], peak: int
) -> tuple[Layer, ...]:
    """Return the layers of placements, each True if in an arena, and of the elements and bytes of weights by name."""
    placed: dict[str, list[Placement]] = {}
    for placement, is_in_arena in placements:
        placed.setdefault(_layer_name(placement.value), []).extend([placement] if is_in_arena else [])
    sizes: dict[str, tuple[int, int]] = {}
    for name, (elements, nbytes) in weights.items():
        before = sizes.get(_layer_name(name), (0, 0))
        sizes[_layer_name(name)] = before[0] + elements, before[1] + nbytes
    layers = []
    for name in dict.fromkeys([*placed, *sizes]):
        of_layer = placed.get(name, [])
        at_peak = [one for one in of_layer if holds(one.live, peak)]
        layers.append(Layer(name, *sizes.get(name, (0, 0)), _union_bytes(of_layer), _union_bytes(at_peak)))
    return tuple(layers)


def _layer_name(value: str) -> str:
    """Return the scope of a value's name; the prefix of gradients is ignored."""
    return value.removeprefix(GRADIENT_SCOPE).rpartition("/")[0]


def _union_bytes(placements: Iterable[Placement]) -> int:
    """Return the bytes of the union of the placements' regions."""
    pieces: dict[str, list[tuple[int, int]]] = {}
    for one in placements:
        pieces.setdefault(one.region.storage, []).append((one.region.offset, one.region.end))
    return sum(map(union_length, pieces.values()))
