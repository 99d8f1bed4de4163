"""A table of the layers of a planned network: weights, and the share of the arena."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from sublet.base.formatting import human, printable
from sublet.base.ranges import holds
from sublet.base.tensor import TensorSpec
from sublet.plan import Placement
from sublet.runtime.executable import Executable

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
    """The layers of an executable, in the order of their first computation; printed as a table."""

    name: str
    layers: tuple[Layer, ...]
    arena_bytes: int

    @property
    def weights(self) -> int:
        """The number of elements of all parameters and states."""
        return sum(layer.weights for layer in self.layers)

    def __str__(self) -> str:
        table = Table("layer", title=printable(self.name), title_justify="left")
        for heading in ("parameters and states", "bytes", "arena", "arena at peak"):
            table.add_column(heading, justify="right")
        for layer in self.layers:
            sizes = (layer.weight_bytes, layer.arena_bytes, layer.peak_bytes)
            table.add_row(printable(layer.name) or "-", f"{layer.weights:,}", *(human(size) for size in sizes))
        nbytes, peak = (sum(getattr(one, what) for one in self.layers) for what in ("weight_bytes", "peak_bytes"))
        table.add_section()
        table.add_row("all", f"{self.weights:,}", human(nbytes), human(self.arena_bytes), human(peak))
        console = Console(file=io.StringIO(), width=120)
        console.print(table)
        return console.file.getvalue().rstrip()  # type: ignore[attr-defined, no-any-return]


def summary(executable: Executable) -> Summary:
    """Return the weights and the arena bytes of each layer of an executable.

    A layer is a scope of names; the gradients of a layer count as part of the layer.
    """
    plan = executable.plan
    arenas = {storage.name for storage in plan.arenas}
    placed: dict[str, list[Placement]] = {}
    for placement in plan.placements:
        in_arena = placed.setdefault(_layer_name(placement.value), [])
        if placement.region.storage in arenas:
            in_arena.append(placement)
    weights: dict[str, tuple[int, int]] = {}
    for value in executable.graph.weights:
        if value.name in executable.weights:
            elements, nbytes = weights.get(_layer_name(value.name), (0, 0))
            size = value.spec.size if isinstance(value.spec, TensorSpec) else 0
            weights[_layer_name(value.name)] = elements + size, nbytes + value.nbytes
    layers = []
    for name in dict.fromkeys([*placed, *weights]):
        of_layer = placed.get(name, [])
        at_peak = [one for one in of_layer if holds(one.live, plan.peak.point)]
        elements, nbytes = weights.get(name, (0, 0))
        layers.append(Layer(name, elements, nbytes, _union_bytes(of_layer), _union_bytes(at_peak)))
    return Summary(plan.graph, tuple(layers), plan.arena_bytes)


def _layer_name(value: str) -> str:
    """Return the scope of a value's name; the prefix of gradients is ignored."""
    return value.removeprefix(GRADIENT_SCOPE).rpartition("/")[0]


def _union_bytes(placements: Iterable[Placement]) -> int:
    """Return the bytes of the union of the placements' regions."""
    covered, storage, end = 0, "", 0
    for region in sorted((one.region for one in placements), key=lambda one: (one.storage, one.offset)):
        if region.storage != storage:
            storage, end = region.storage, 0
        covered += max(0, region.end - max(end, region.offset))
        end = max(end, region.end)
    return covered
