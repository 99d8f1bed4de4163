"""What of a forward is kept for the backward, and what is cheap enough to be computed once more there.

    y = gelu(h); z = y @ w                      y = gelu(h); z = y @ w
    ...                             ->          ...
    dw = y.t() @ dz                             again = gelu(h); dw = again.t() @ dz

A tensor is dropped only where what it is computed of again is kept anyway, or is smaller. Chains of such operators are
short, so that nothing is computed more than twice. What is left to decide is PyTorch's partitioner's.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sublet.base.extras import require
from sublet.frontends.torch.tensors import torch

LONGEST = 8
"""Operators of a chain, views not counted."""

LEAST = 1 << 14
"""Bytes below which a tensor is kept."""

CHEAP = (
    "aten.clone.default", "aten._to_copy.default", "aten.full.default", "aten.full_like.default",
    "aten.scalar_tensor.default", "aten.arange.default", "aten.arange.start", "aten.arange.start_step",
    "aten.zeros_like.default", "aten.ones_like.default", "aten.native_layer_norm.default",
)  # fmt: skip
"""Operators that take about as long as reading their inputs, beside those that PyTorch calls pointwise."""

POOL = "aten.max_pool2d_with_indices.default"
"""Its indices are twice as large as its maxima."""

BATCH_NORM = "aten._native_batch_norm_legit_functional.default"


def partition(joint: Any, example: Sequence[Any], *, num_fwd_outputs: int, **options: Any) -> tuple[Any, Any]:
    """Forward and backward of a joint graph, as AOTAutograd asks for them."""
    partitioners = require("torch._functorch.partitioners", extra="torch")
    config = require("torch._functorch.config", extra="torch")
    if not any(node.meta.get("recompute") for node in joint.graph.nodes):  # what the user decides stands
        common = require("torch._functorch.compile_utils", extra="torch").fx_graph_cse
        joint.graph.eliminate_dead_code()
        joint.graph = common(joint.graph)
        _Joint(joint.graph, num_fwd_outputs).drop()
        joint.graph.lint()
        joint.recompile()
    with config.patch(cse=False):  # it would find what is computed again
        found: tuple[Any, Any] = partitioners.min_cut_rematerialization_partition(
            joint, example, num_fwd_outputs=num_fwd_outputs, **options
        )
    return found


def computed_again(joint: Any, outputs: int) -> None:
    """Let a graph of forward and backward, whose first results are the forward's, compute again what is cheap, each
    right before its first reader."""
    graph = joint.graph
    graph.eliminate_dead_code()
    found = _Joint(graph, outputs)
    found.drop()
    made = [node for node in graph.nodes if node not in found.before]
    place = {node: number for number, node in enumerate(graph.nodes)}
    for node in reversed(made):
        first = min(node.users, key=lambda user: place[user])
        first.prepend(node)
        place[node] = place[first]
    for node in graph.nodes:
        node.meta.pop("recompute", None)
    graph.lint()
    joint.recompile()


@dataclass
class _Chain:
    """How a tensor is computed again: operators, the tensors that they begin with, and how many follow each other."""

    nodes: list[Any] = field(default_factory=list)
    leaves: list[Any] = field(default_factory=list)
    length: int = 0


class _Joint:
    """A graph of forward and backward."""

    def __init__(self, graph: Any, outputs: int) -> None:
        self._graph = graph
        self._order = list(graph.nodes)
        self.before = set(self._order)
        self._forward = self._needed(self._order[-1].args[0][:outputs])
        self._kept: set[Any] = set()
        self._chains: dict[Any, _Chain] = {}
        self._again: dict[Any, Any] = {}

    def _needed(self, outputs: Sequence[Any]) -> set[Any]:
        """The nodes that the results of the forward are computed by."""
        found: set[Any] = set()
        open_ = [node for node in outputs if isinstance(node, torch().fx.Node)]
        while open_:
            node = open_.pop()
            if node not in found:
                found.add(node)
                open_ += node.all_input_nodes
        return found

    def _late(self, node: Any) -> list[Any]:
        """Who reads a node of the forward in the backward."""
        return [user for user in node.users if user not in self._forward and user.op == "call_function"]

    def drop(self) -> None:
        """Let the backward compute again what is cheap."""
        given = {storage(node) for node in self._order[-1].all_input_nodes}
        wanted = [
            node for node in self._order if node in self._forward and node.op == "call_function" and self._late(node)
        ]
        tensors = [node for node in wanted if nbytes(node)]
        self._kept.update(storage(node) for node in tensors if not _cheap(storage(node)))
        for node in tensors:
            self._decide(storage(node), given)
        for node in tensors:
            if storage(node) in self._chains:
                late, again = self._late(node), self._copied(node)
                for user in late:
                    user.replace_input_with(node, again)
        save = torch().utils.checkpoint.CheckpointPolicy.MUST_SAVE
        for node in self._kept:
            if node.op == "call_function":
                node.meta["recompute"] = save

    def _decide(self, tensor: Any, given: set[Any]) -> None:
        if tensor in self._kept or tensor in self._chains or tensor.op != "call_function":
            return
        chain = self._chain(tensor) if nbytes(tensor) >= LEAST and tensor not in given else None
        if chain is not None:
            more = sum(nbytes(leaf) for leaf in chain.leaves if leaf not in self._kept)
            if chain.length <= LONGEST and 2 * more <= nbytes(tensor):
                self._chains[tensor] = chain
                self._kept.update(chain.leaves)
                return
        self._kept.add(tensor)

    def _chain(self, tensor: Any) -> _Chain:
        """How a cheap tensor is computed of what is kept, or is not cheap."""
        chain, lengths = _Chain(), dict[Any, int]()

        def visit(node: Any) -> int:
            node = storage(node)
            if node.op != "call_function":
                return 0
            if node in lengths:
                return lengths[node]
            if node in self._chains:
                inner = self._chains[node]
                chain.leaves += inner.leaves
                lengths[node] = inner.length
            elif node in self._kept or not _cheap(node):
                chain.leaves.append(node)
                lengths[node] = 0
            else:
                lengths[node] = 0  # until it is known
                inputs = _inputs(node)
                lengths[node] = 1 + max(map(visit, inputs), default=0)
                chain.nodes.append(node)
            return lengths[node]

        chain.length = visit(tensor)
        chain.leaves = list(dict.fromkeys(chain.leaves))
        return chain

    def _copied(self, node: Any) -> Any:
        """The node computed again, with all views and cheap nodes that it takes; itself where it is kept."""
        home = storage(node)
        if home.op != "call_function" or home in self._kept or not _cheap(home):
            return node
        if node in self._again:
            return self._again[node]
        if _is_batch_norm(node):
            return self._again.setdefault(node, self._normalized_again(node))
        places = {each: self._copied(each) for each in node.all_input_nodes if not _gives_several(each)}
        several = {each: self._several(each) for each in node.all_input_nodes if _gives_several(each)}
        with self._graph.inserting_after(_last([node, *places.values(), *several.values()], self._graph)):
            made = self._graph.node_copy(node, lambda each: {**places, **several}.get(each, each))
        return self._again.setdefault(node, made)

    def _several(self, node: Any) -> Any:
        """An operator with several results, computed again."""
        if node not in self._again:
            places = {each: self._copied(each) for each in node.all_input_nodes}
            with self._graph.inserting_after(_last([node, *places.values()], self._graph)):
                self._again[node] = self._graph.node_copy(node, lambda each: places.get(each, each))
        return self._again[node]

    def _normalized_again(self, node: Any) -> Any:
        """What a batch norm gives, by the statistics that it has kept."""
        (whole, _), aten = node.args, torch().ops.aten
        x, scale, bias = whole.args[:3]
        mean, rstd = _result(whole, 1), _result(whole, 2)
        x = self._copied(x)
        with self._graph.inserting_after(_last([node, x, rstd, mean], self._graph)):
            variance = self._graph.call_function(aten.pow.Tensor_Scalar, (rstd, -2.0))
        variance.meta["val"] = torch().empty_like(rstd.meta["val"])
        with self._graph.inserting_after(variance):
            again = self._graph.call_function(
                aten._native_batch_norm_legit_no_training.default, (x, scale, bias, mean, variance, 0.0, 0.0)
            )
        again.meta["val"] = (node.meta["val"], torch().empty(0), torch().empty(0))
        with self._graph.inserting_after(again):
            made = self._graph.call_function(operator.getitem, (again, 0))
        made.meta["val"] = node.meta["val"]
        return made


def storage(node: Any) -> Any:
    """The node that computed what this one is a view of."""
    while _is_view(node) and node.args and isinstance(node.args[0], torch().fx.Node):
        node = node.args[0]
    return node


def nbytes(node: Any) -> int:
    """Bytes of the tensor that a node gives; 0 for what is none."""
    found = node.meta.get("val")
    if not isinstance(found, torch().Tensor) or any(not isinstance(extent, int) for extent in found.shape):
        return 0
    return int(found.numel() * found.element_size())


def _is_view(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return False
    alias = [result.alias_info for result in schema.returns]
    return len(alias) == 1 and alias[0] is not None and not alias[0].is_write and not schema.is_mutable


def _cheap(node: Any) -> bool:
    """Whether a tensor is computed by what takes about as long as reading its inputs."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        whole, position = node.args
        if str(whole.target) == BATCH_NORM:
            return _is_batch_norm(node)
        return str(whole.target) == POOL or (position == 0 and str(whole.target) in CHEAP)
    t, tags = torch(), getattr(node.target, "tags", ())
    if t.Tag.nondeterministic_seeded in tags or not isinstance(node.meta.get("val"), t.Tensor):
        return False
    return t.Tag.pointwise in tags or str(node.target) in CHEAP


def _is_batch_norm(node: Any) -> bool:
    """Whether it is the result of a batch norm in training whose statistics are kept, with a scale and a bias."""
    if node.op != "call_function" or node.target is not operator.getitem or node.args[1] != 0:
        return False
    whole = node.args[0]
    if str(whole.target) != BATCH_NORM or None in whole.args[1:3] or not whole.args[5]:
        return False
    return _result(whole, 1) is not None and _result(whole, 2) is not None


def _result(whole: Any, position: int) -> Any:
    return next((user for user in whole.users if user.target is operator.getitem and user.args[1] == position), None)


def _gives_several(node: Any) -> bool:
    return node.op == "call_function" and isinstance(node.meta.get("val"), list | tuple)


def _inputs(node: Any) -> Iterator[Any]:
    """The tensors that a cheap node is computed of."""
    for each in node.all_input_nodes:
        if not _gives_several(each):
            yield each
        elif str(each.target) == BATCH_NORM:
            yield from (each.args[0], _result(each, 1), _result(each, 2))
        else:
            yield from each.all_input_nodes


def _last(nodes: Sequence[Any], graph: Any) -> Any:
    """The last of these nodes in the graph."""
    wanted = set(nodes)
    return next(node for node in reversed(graph.nodes) if node in wanted)
