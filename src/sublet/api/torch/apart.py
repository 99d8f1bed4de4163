"""Rematerialization of cheap tensors for late uses, if the copies lower the peak.

    r = relu(c); p = pool(r)                 r = relu(c); p = pool(r)
    ...                              ->      ...
    dc = threshold(dr, r)                    again = relu(c); dc = threshold(dr, again)

Live bytes are estimated in graph order. Each step considers the peak point: of the tensors live across the peak only
for later readers, the largest tensor with enough effect on the peak is computed again for the later readers.
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
"""Maximum number of rematerialized tensors a graph."""

WORTH = 4
"""The peak must fall by at least 1/4 of the rematerialized tensor's bytes: the second computation takes time."""


def computed_apart(graph: Any, outside: Collection[str]) -> None:
    """Rematerialize cheap tensors of a graph for late uses, in place.

    `outside` names the placeholders outside the arena; their bytes are not counted. At most `MAX_STEPS` tensors are
    rematerialized.
    """
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
    """Apply a step and return the new live ranges; undo the step and return None if the peak falls too little."""
    step.make()
    lowered = _Lives(step.graph, outside)
    if lowered.peak <= step.lives.peak - nbytes(step.tensor) // WORTH:
        return lowered
    step.undo()
    return None


def _cheap_alone(tensor: Any) -> bool:
    """True if a tensor is cheap to compute again without the statistics of a batch norm."""
    return is_cheap(tensor) and not is_batch_norm(tensor)


class _Lives:
    """Live ranges of a graph's tensors in node positions, and the live bytes at each position.

    position       the position of each node
    readers        the nodes reading a storage or a view of the storage
    peak_position  the position with the most live bytes
    peak_bytes     the live bytes at the peak position
    """

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
        """Return the position of the last reader of a tensor; the definition if the tensor has no reader."""
        return max((self.place[node] for node in self.readers.get(tensor, ())), default=self.place[tensor])

    def _overwrites(self, tensor: Any) -> bool:
        """True if a pointwise operator can write the result over a dying operand of the same size."""
        if torch().Tag.pointwise not in getattr(tensor.target, "tags", ()) or not self.readers.get(tensor):
            return False
        homes = (storage(each) for each in tensor.all_input_nodes)
        return any(nbytes(home) == nbytes(tensor) and self.last(home) == self.place[tensor] for home in homes)

    def across(self) -> list[Any]:
        """Return the cheap tensors live across the peak without a reader at the peak, the largest first."""
        tensors = [
            tensor
            for tensor in self._tensors
            if self.place[tensor] < self.highest < self.last(tensor)
            and nbytes(tensor) >= LEAST
            and _cheap_alone(tensor)
            and all(self.place[node] != self.highest for node in self.readers[tensor])
        ]
        return sorted(tensors, key=nbytes, reverse=True)

    def late(self, tensor: Any) -> list[Any]:
        """Return the readers of a tensor after the peak, in graph order."""
        return [node for node in self.readers[tensor] if self.place[node] > self.highest]


@dataclass
class _Step:
    """Rematerialization of one tensor for the readers after the peak.

    copies        the copied nodes by original node
    replacements  (reader, old operand, new operand)
    origins       the original node of every copy, over all steps
    """

    graph: Any
    lives: _Lives
    tensor: Any
    origins: dict[Any, Any]
    made: dict[Any, Any] = field(default_factory=dict)
    changed: list[tuple[Any, Any, Any]] = field(default_factory=list)

    def make(self) -> None:
        """Compute the tensor again right before the first late reader, and let all late readers read the copy."""
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
        """Return a copy of a node with copies of all dead operands; an equal node still live is used without a copy."""
        if node not in self.made:
            there = next(filter(self._is_there, (node, *self._like(node))), None)
            if there is not None:
                return there
            self.made[node] = self.graph.node_copy(node, self._again)
            self.origins[self.made[node]] = self._origin(node)
        return self.made[node]

    def _origin(self, node: Any) -> Any:
        """Return the original node of a copy; an original node itself."""
        return self.origins.get(node, node)

    def _like(self, node: Any) -> list[Any]:
        """Return the nodes computing the same value: the original node and copies of earlier steps."""
        origin = self._origin(node)
        return [other for other in (origin, *self.origins) if self._origin(other) is origin and other is not node]

    def _is_there(self, node: Any) -> bool:
        """True if the first late reader may read the node: the tensor is live there, or must be live there anyway."""
        home = storage(node)
        if home is self.tensor or gives_several(node) or self.lives.place.get(node, self.before) >= self.before:
            return False
        return home.op != "call_function" or self.lives.last(home) >= self.before or not _cheap_alone(home)

    def undo(self) -> None:
        """Restore the graph as before `apply`."""
        for reader, old, new in self.changed:
            reader.replace_input_with(new, old)
        for node in reversed(self.made.values()):
            del self.origins[node]
            self.graph.erase_node(node)
