"""Queries on nodes of traced FX graphs: storage of a view, size in bytes, and cost of a second computation."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from sublet.integrations.torch.reader.fx_conversion import FxArgument
from sublet.integrations.torch.reader.traced_tensor import torch

if TYPE_CHECKING:
    from torch.fx import Graph, Node

MIN_RECOMPUTED_BYTES = 1 << 14
"""Minimum bytes of a rematerialized tensor. Smaller tensors are kept."""

CHEAP_OPERATORS = (
    "aten.clone.default", "aten._to_copy.default", "aten.full.default", "aten.full_like.default",
    "aten.scalar_tensor.default", "aten.arange.default", "aten.arange.start", "aten.arange.start_step",
    "aten.zeros_like.default", "aten.ones_like.default", "aten.native_layer_norm.default",
    "aten._native_batch_norm_legit_no_training.default", "aten.native_dropout_backward.default",
)  # fmt: skip
"""Operators about as fast as reading their inputs, beside operators tagged as pointwise by PyTorch."""

MAX_POOL = "aten.max_pool2d_with_indices.default"
"""Max pooling with indices. The int64 indices are twice as large as f32 maxima."""

BATCH_NORM = "aten._native_batch_norm_legit_functional.default"


def arguments_of(node: Node) -> Sequence[FxArgument]:
    """Return the positional arguments of a node."""
    return node.args


def storage_node(node: Node) -> Node:
    """Return the node computing the storage of a view; the node itself for a node without an operand to view."""
    while _is_view(node) and node.args and isinstance(node.args[0], torch().fx.Node):
        node = node.args[0]
    return node


def tensor_bytes(node: Node) -> int:
    """Return the bytes of a node's tensor, for symbolic extents in the traced example; 0 for a node without a tensor.

    0 also for a tensor with an extent that depends on the content of tensors.
    """
    tensor = node.meta.get("val")
    if not isinstance(tensor, torch().Tensor):
        return 0
    hints = [each if isinstance(each, int) else getattr(each.node, "hint", None) for each in tensor.shape]
    extents = [each for each in hints if isinstance(each, int)]
    return prod(extents) * int(tensor.element_size()) if len(extents) == len(hints) else 0


def fix_extents(example: Sequence[object]) -> None:
    """Fix the symbolic extents of example arguments, as for a peak known in bytes: PyTorch traces each shape alone."""
    for each in example:
        numbers = (*each.shape, *each.stride()) if isinstance(each, torch().Tensor) else (each,)
        for number in numbers:
            if isinstance(number, torch().SymInt):
                int(number)


def _is_view(node: Node) -> bool:
    """True if the only result of the node aliases an operand and the operator writes no operand."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return False
    alias = [result.alias_info for result in schema.returns]
    return len(alias) == 1 and alias[0] is not None and not alias[0].is_write and not schema.is_mutable


def is_cheap(node: Node) -> bool:
    """True if computing the tensor takes about as long as reading the operator's inputs."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        whole, position = arguments_of(node)
        if str(whole.target) == BATCH_NORM:
            return is_batch_norm_result(node)
        return str(whole.target) == MAX_POOL or (position == 0 and str(whole.target) in CHEAP_OPERATORS)
    t, tags = torch(), getattr(node.target, "tags", ())
    if (
        t.Tag.nondeterministic_seeded in tags
        or not isinstance(node.meta.get("val"), t.Tensor)
        or _is_argument_copy(node)
    ):
        return False
    return t.Tag.pointwise in tags or str(node.target) in CHEAP_OPERATORS


def _is_argument_copy(node: Node) -> bool:
    """True for a copy of an argument.

    AOTAutograd copies an argument before the function changes the argument, so a second copy would have the changed
    content.
    """
    return str(node.target) == "aten.clone.default" and arguments_of(node)[0].op == "placeholder"


def is_batch_norm_result(node: Node) -> bool:
    """True for the result of a training batch norm with scale, bias and saved statistics."""
    if node.op != "call_function" or node.target is not operator.getitem or node.args[1] != 0:
        return False
    whole = arguments_of(node)[0]
    if str(whole.target) != BATCH_NORM or None in whole.args[1:3] or not whole.args[5]:
        return False
    return result_at(whole, 1) is not None and result_at(whole, 2) is not None


def result_at(whole: Node, position: int) -> Node | None:
    """Return the `getitem` node of a result position, or None if the position is unused."""
    return next((user for user in whole.users if user.target is operator.getitem and user.args[1] == position), None)


def has_several_results(node: Node) -> bool:
    """True if the node returns several tensors."""
    return node.op == "call_function" and isinstance(node.meta.get("val"), list | tuple)


def forward_nodes(outputs: Sequence[FxArgument]) -> set[Node]:
    """Return the nodes computing some results, with all `getitem` nodes of multi-result operators."""
    needed: set[Node] = set()
    todo = [node for node in outputs if isinstance(node, torch().fx.Node)]
    while todo:
        node = todo.pop()
        if node not in needed:
            needed.add(node)
            todo += node.all_input_nodes
            todo += (user for user in node.users if user.target is operator.getitem)
    return needed


# Rematerialization of cheap tensors for late uses, if the copies lower the peak.
#
#     r = relu(c); p = pool(r)                 r = relu(c); p = pool(r)
#     ...                              ->      ...
#     dc = threshold(dr, r)                    again = relu(c); dc = threshold(dr, again)
#
# Live bytes are estimated in graph order. Each step considers the peak point: of the tensors live across the peak only
# for later readers, the largest tensor with enough effect on the peak is computed again for the later readers.

MAX_STEPS = 32
"""Maximum number of rematerialized tensors a graph."""

MIN_GAIN_DIVISOR = 4
"""The peak must fall by at least 1/4 of the rematerialized tensor's bytes: the second computation takes time."""


def rematerialize_late_uses(graph: Graph, outside: Collection[str]) -> None:
    """Rematerialize cheap tensors of a graph for late uses, in place.

    `outside` names the placeholders outside the arena; their bytes are not counted. At most `MAX_STEPS` tensors are
    rematerialized.
    """
    origins: dict[Node, Node] = {}
    lives: _FxLiveRanges | None = _FxLiveRanges(graph, outside)
    for _ in range(MAX_STEPS):
        if lives is None:
            break
        copied = {*origins, *origins.values()}  # late readers may read an equal tensor instead of a copy
        tensors = [each for each in lives.live_across_peak() if each in copied or lives.may_lower_peak(each)]
        steps = (_RematStep(graph, lives, tensor, origins) for tensor in tensors)
        lives = next(filter(None, (_try_step(step, outside) for step in steps)), None)
    for node in reversed(graph.nodes):
        if node.target is operator.getitem and not node.users:
            graph.erase_node(node)
    graph.lint()


def _try_step(step: _RematStep, outside: Collection[str]) -> _FxLiveRanges | None:
    """Apply a step and return the new live ranges; undo the step and return None if the peak falls too little."""
    step.apply()
    lowered = _FxLiveRanges(step.graph, outside)
    if lowered.peak_bytes <= step.live_ranges.wanted_peak(step.tensor):
        return lowered
    step.undo()
    return None


def _is_cheap_without_statistics(tensor: Node) -> bool:
    """True if a tensor is cheap to compute again without the statistics of a batch norm."""
    return is_cheap(tensor) and not is_batch_norm_result(tensor)


class _FxLiveRanges:
    """Live ranges of a graph's tensors in node positions, and the live bytes at each position.

    position       the position of each node
    readers        the nodes reading a storage or a view of the storage
    peak_position  the position with the most live bytes
    peak_bytes     the live bytes at the peak position
    """

    def __init__(self, graph: Graph, outside: Collection[str]) -> None:
        self.position = {node: number for number, node in enumerate(graph.nodes)}
        self.readers: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            for home in {storage_node(each) for each in node.all_input_nodes if node.op != "output"}:
                if storage_node(node) is not home:
                    self.readers.setdefault(home, []).append(node)
        self._tensors = [
            node
            for node in graph.nodes
            if storage_node(node) is node
            and tensor_bytes(node)
            and not (node.op == "placeholder" and node.name in outside)
        ]
        change = np.zeros(len(self.position) + 1, np.int64)
        for tensor in self._tensors:
            change[self.position[tensor] + self._can_reuse_operand(tensor)] += tensor_bytes(tensor)
            change[self.last_use(tensor) + 1] -= tensor_bytes(tensor)
        self._alive = np.cumsum(change)
        self._peak_until = np.maximum.accumulate(self._alive)
        self._peak_from = np.maximum.accumulate(self._alive[::-1])[::-1]
        self.peak_position = int(self._alive.argmax())
        self.peak_bytes = int(self._alive[self.peak_position])

    def last_use(self, tensor: Node) -> int:
        """Return the position of the last reader of a tensor; the definition if the tensor has no reader."""
        return max((self.position[node] for node in self.readers.get(tensor, ())), default=self.position[tensor])

    def _can_reuse_operand(self, tensor: Node) -> bool:
        """True if a pointwise operator can write the result over a dying operand of the same size."""
        if torch().Tag.pointwise not in getattr(tensor.target, "tags", ()) or not self.readers.get(tensor):
            return False
        homes = (storage_node(each) for each in tensor.all_input_nodes)
        return any(
            tensor_bytes(home) == tensor_bytes(tensor) and self.last_use(home) == self.position[tensor]
            for home in homes
        )

    def live_across_peak(self) -> list[Node]:
        """Return the cheap tensors live across the peak without a reader at the peak, the largest first."""
        tensors = [
            tensor
            for tensor in self._tensors
            if self.position[tensor] < self.peak_position < self.last_use(tensor)
            and tensor_bytes(tensor) >= MIN_RECOMPUTED_BYTES
            and _is_cheap_without_statistics(tensor)
            and all(self.position[node] != self.peak_position for node in self.readers[tensor])
        ]
        return sorted(tensors, key=tensor_bytes, reverse=True)

    def wanted_peak(self, tensor: Node) -> int:
        """Return the largest peak at which the rematerialization of a tensor is worth the time."""
        return self.peak_bytes - tensor_bytes(tensor) // MIN_GAIN_DIVISOR

    def may_lower_peak(self, tensor: Node) -> bool:
        """True if the rematerialization of a tensor may lower the peak to `wanted_peak`.

        Without the tensor, live bytes fall only between the last reader before the peak and the first after the peak,
        by at most the bytes of the tensor. The last reader before the peak may then write over the tensor. A copy only
        adds live bytes. The test takes no second computation of live ranges.
        """
        first_late = self.position[self.late_readers(tensor)[0]]
        positions = (self.position[node] for node in (tensor, *self.readers[tensor]))
        last_early = max(each for each in positions if each < self.peak_position)
        between = self._alive[last_early + 1 : first_late].max() - tensor_bytes(tensor)
        before = self._peak_until[last_early - 1] if last_early else 0
        return bool(max(before, between, self._peak_from[first_late]) <= self.wanted_peak(tensor))

    def late_readers(self, tensor: Node) -> list[Node]:
        """Return the readers of a tensor after the peak, in graph order."""
        return [node for node in self.readers[tensor] if self.position[node] > self.peak_position]


@dataclass
class _RematStep:
    """Rematerialization of one tensor for the readers after the peak.

    copies        the copied nodes by original node
    replacements  (reader, old operand, new operand)
    origins       the original node of every copy, over all steps
    """

    graph: Graph
    live_ranges: _FxLiveRanges
    tensor: Node
    origins: dict[Node, Node]
    copies: dict[Node, Node] = field(default_factory=dict)
    replacements: list[tuple[Node, Node, Node]] = field(default_factory=list)

    def apply(self) -> None:
        """Compute the tensor again right before the first late reader, and let all late readers read the copy."""
        late = self.live_ranges.late_readers(self.tensor)
        self.first_late_use = self.live_ranges.position[late[0]]
        with self.graph.inserting_before(late[0]):
            for reader in late:
                for old in reader.all_input_nodes:
                    if storage_node(old) is self.tensor:
                        self.replacements.append((reader, old, self._copy_of(old)))
        for reader, old, new in self.replacements:
            reader.replace_input_with(old, new)

    def _copy_of(self, node: Node) -> Node:
        """Return a copy of a node with copies of all dead operands; an equal node still live is used without a copy."""
        if node not in self.copies:
            there = next(filter(self._is_live_at_late_use, (node, *self._equal_nodes(node))), None)
            if there is not None:
                return there
            self.copies[node] = self.graph.node_copy(node, self._copy_of)
            self.origins[self.copies[node]] = self._origin(node)
        return self.copies[node]

    def _origin(self, node: Node) -> Node:
        """Return the original node of a copy; an original node itself."""
        return self.origins.get(node, node)

    def _equal_nodes(self, node: Node) -> list[Node]:
        """Return the nodes computing the same value: the original node and copies of earlier steps."""
        origin = self._origin(node)
        return [other for other in (origin, *self.origins) if self._origin(other) is origin and other is not node]

    def _is_live_at_late_use(self, node: Node) -> bool:
        """True if the first late reader may read the node: the tensor is live there, or must be live there anyway."""
        home = storage_node(node)
        if (
            home is self.tensor
            or has_several_results(node)
            or self.live_ranges.position.get(node, self.first_late_use) >= self.first_late_use
        ):
            return False
        return (
            home.op != "call_function"
            or self.live_ranges.last_use(home) >= self.first_late_use
            or not _is_cheap_without_statistics(home)
        )

    def undo(self) -> None:
        """Restore the graph as before `apply`."""
        for reader, old, new in self.replacements:
            reader.replace_input_with(new, old)
        for node in reversed(self.copies.values()):
            del self.origins[node]
            self.graph.erase_node(node)
