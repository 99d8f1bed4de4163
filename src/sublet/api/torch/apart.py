"""What is cheap is computed anew for readers that come late, where keeping it for them would raise the peak.

    r = relu(c); p = pool(r)                 r = relu(c); p = pool(r)
    ...                              ->      ...
    dc = threshold(dr, r)                    again = relu(c); dc = threshold(dr, again)

Bytes alive are estimated along the order of the graph. Each step looks at the highest point: of the tensors that are
there for later readers only, the largest whose leaving brings the peak down enough is computed once more for these.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sublet.api.torch.cheap import LEAST, gives_several, is_batch_norm, is_cheap, nbytes, storage
from sublet.frontends.torch.tensors import torch

MOST = 32
"""Steps."""

WORTH = 4
"""The peak has to come down by this part of the tensor's bytes: what is computed once more takes time."""


def computed_apart(graph: Any, outside: Collection[str]) -> None:
    """Compute tensors of a graph again for late readers, in place; arguments with names in `outside` lie elsewhere."""
    origins: dict[Any, Any] = {}
    lives: _Lives | None = _Lives(graph, outside)
    for _ in range(MOST):
        if lives is None:
            break
        steps = (_Step(graph, lives, tensor, origins) for tensor in lives.across())
        lives = next(filter(None, (_lower(step, outside) for step in steps)), None)
    for node in reversed(graph.nodes):
        if node.target is operator.getitem and not node.users:
            graph.erase_node(node)
    graph.lint()


def _lower(step: _Step, outside: Collection[str]) -> _Lives | None:
    """The lives with a lower peak, where late readers have a tensor of their own; None if it does not come down, and
    they have not."""
    step.make()
    found = _Lives(step.graph, outside)
    if found.peak <= step.lives.peak - nbytes(step.tensor) // WORTH:
        return found
    step.undo()
    return None


def _cheap_alone(tensor: Any) -> bool:
    """Whether a tensor is cheap to compute, not counting what takes the statistics of a batch for it."""
    return is_cheap(tensor) and not is_batch_norm(tensor)


class _Lives:
    """How long the tensors of a graph are needed, in positions of nodes, and the bytes alive at each."""

    def __init__(self, graph: Any, outside: Collection[str]) -> None:
        self.place = {node: number for number, node in enumerate(graph.nodes)}
        self.readers: dict[Any, list[Any]] = {}
        for node in graph.nodes:
            for home in {storage(each) for each in node.all_input_nodes if node.op != "output"}:
                if storage(node) is not home:
                    self.readers.setdefault(home, []).append(node)
        self._tensors = [
            node
            for node in graph.nodes
            if storage(node) is node and nbytes(node) and not (node.op == "placeholder" and node.name in outside)
        ]
        change = np.zeros(len(self.place) + 1, np.int64)
        for tensor in self._tensors:
            change[self.place[tensor] + self._overwrites(tensor)] += nbytes(tensor)
            change[self.last(tensor) + 1] -= nbytes(tensor)
        alive = np.cumsum(change)
        self.highest = int(alive.argmax())
        self.peak = int(alive[self.highest])

    def last(self, tensor: Any) -> int:
        """The position of its last reader."""
        return max((self.place[node] for node in self.readers.get(tensor, ())), default=self.place[tensor])

    def _overwrites(self, tensor: Any) -> bool:
        """Whether it is written where one of its operands ends."""
        if torch().Tag.pointwise not in getattr(tensor.target, "tags", ()) or not self.readers.get(tensor):
            return False
        homes = (storage(each) for each in tensor.all_input_nodes)
        return any(nbytes(home) == nbytes(tensor) and self.last(home) == self.place[tensor] for home in homes)

    def across(self) -> list[Any]:
        """The cheap tensors that are alive at the peak, and nobody reads there; the largest first."""
        found = [
            tensor
            for tensor in self._tensors
            if self.place[tensor] < self.highest < self.last(tensor)
            and nbytes(tensor) >= LEAST
            and _cheap_alone(tensor)
            and all(self.place[node] != self.highest for node in self.readers[tensor])
        ]
        return sorted(found, key=nbytes, reverse=True)

    def late(self, tensor: Any) -> list[Any]:
        """Who reads a tensor behind the peak, in order."""
        return [node for node in self.readers[tensor] if self.place[node] > self.highest]


@dataclass
class _Step:
    """A tensor computed again for who reads it behind the peak; `origins` says of each node made so what it repeats."""

    graph: Any
    lives: _Lives
    tensor: Any
    origins: dict[Any, Any]
    made: dict[Any, Any] = field(default_factory=dict)
    changed: list[tuple[Any, Any, Any]] = field(default_factory=list)

    def make(self) -> None:
        """Let the late readers read what is computed right before the first of them."""
        late = self.lives.late(self.tensor)
        self.before = self.lives.place[late[0]]
        with self.graph.inserting_before(late[0]):
            for reader in late:
                for old in reader.all_input_nodes:
                    if storage(old) is self.tensor:
                        self.changed.append((reader, old, self._again(old)))
        for reader, old, new in self.changed:
            reader.replace_input_with(old, new)

    def _again(self, node: Any) -> Any:
        """A node once more, with what it is computed of and is there no more."""
        if node not in self.made:
            there = next(filter(self._is_there, (node, *self._like(node))), None)
            if there is not None:
                return there
            self.made[node] = self.graph.node_copy(node, self._again)
            self.origins[self.made[node]] = self._origin(node)
        return self.made[node]

    def _origin(self, node: Any) -> Any:
        return self.origins.get(node, node)

    def _like(self, node: Any) -> list[Any]:
        """Nodes of earlier steps that compute the same."""
        origin = self._origin(node)
        return [other for other in (origin, *self.origins) if self._origin(other) is origin and other is not node]

    def _is_there(self, node: Any) -> bool:
        """Whether a node may be read at the first late reader: its tensor is alive still, or has to be."""
        home = storage(node)
        if home is self.tensor or gives_several(node) or self.lives.place.get(node, self.before) >= self.before:
            return False
        return home.op != "call_function" or self.lives.last(home) >= self.before or not _cheap_alone(home)

    def undo(self) -> None:
        """As it was."""
        for reader, old, new in self.changed:
            reader.replace_input_with(new, old)
        for node in reversed(self.made.values()):
            del self.origins[node]
            self.graph.erase_node(node)
