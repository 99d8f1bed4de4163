"""What of a forward is kept for the backward, and what is cheap enough to be computed once more there.

    y = gelu(h); z = y @ w                      y = gelu(h); z = y @ w
    ...                             ->          ...
    dw = y.t() @ dz                             again = gelu(h); dw = again.t() @ dz

A tensor is dropped only where what it is computed of again is kept anyway, or is smaller. Chains of such operators are
short, so that nothing is computed more than twice. What is left to decide is PyTorch's partitioner's.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sublet.api.torch.apart import computed_apart
from sublet.api.torch.cheap import BATCH_NORM, LEAST, gives_several, is_batch_norm, is_cheap, nbytes, result, storage
from sublet.base.extras import require
from sublet.frontends.torch.tensors import torch

LONGEST = 8
"""Operators of a chain, views not counted."""

ALIASES = ("aten.detach.default", "aten.alias.default")


def partition(joint: Any, example: Sequence[Any], *, num_fwd_outputs: int, **options: Any) -> tuple[Any, Any]:
    """Forward and backward of a joint graph, as AOTAutograd asks for them."""
    partitioners = require("torch._functorch.partitioners", extra="torch")
    config = require("torch._functorch.config", extra="torch")
    ours = not any(node.meta.get("recompute") for node in joint.graph.nodes)  # what the user decides stands
    given = {node.name for node in joint.graph.nodes if node.op == "placeholder"}
    if ours:
        common = require("torch._functorch.compile_utils", extra="torch").fx_graph_cse
        _without_aliases(joint.graph)
        joint.graph.eliminate_dead_code()
        joint.graph = common(joint.graph)
        _Joint(joint.graph, num_fwd_outputs).drop()
        joint.graph.lint()
        joint.recompile()
    changed: set[str] = set()
    if not ours or config.activation_memory_budget < 1:
        changed = _changed_arguments(joint.graph, num_fwd_outputs)
        _save_what_changes(joint.graph, changed, whole=not ours)

    def divided(**patched: Any) -> tuple[Any, Any]:
        with config.patch(cse=False, **patched):  # it would find what is computed again
            found: tuple[Any, Any] = partitioners.min_cut_rematerialization_partition(
                joint, example, num_fwd_outputs=num_fwd_outputs, **options
            )
        return found

    found = divided() if ours else divided(activation_memory_budget=1.0)
    again = _differs_again(*found, changed)
    if again:
        warnings.warn(
            f"activation_memory_budget={config.activation_memory_budget} would compute {again} once more in the "
            "backward, where it gives other numbers: this graph keeps what PyTorch keeps without a budget",
            stacklevel=2,
        )
        found = divided(activation_memory_budget=1.0)
    if ours:
        computed_apart(found[1].graph, given)
        found[1].recompile()
    return found


def _save_what_changes(graph: Any, changed: set[str], whole: bool) -> None:
    """Let the partitioner keep results that a second computation would not give again: of operators that draw random
    numbers, and of operators that read an argument which the forward changes, as a batch norm's statistics.

    Of an operator with several results the node is marked too if `whole`: the minimum cut looks at the node alone, and
    the search within a budget would keep the tuple besides.
    """
    policy = require("torch.utils.checkpoint", extra="torch").CheckpointPolicy
    for node in graph.nodes:
        if _draws(node) or any(each.name in changed for each in node.all_input_nodes):
            results = [user for user in node.users if user.target is operator.getitem]
            for kept in [*results, *([node] if whole or not results else [])]:
                if kept.op == "call_function":
                    kept.meta["recompute"] = policy.MUST_SAVE


def _changed_arguments(graph: Any, outputs: int) -> set[str]:
    """Return the names of the placeholders of a joint graph whose tensors the forward may change: those without a
    gradient from which a result of the forward of their shape and type is computed. AOTAutograd does not say which."""
    results = next(node for node in graph.nodes if node.op == "output").args[0]
    given = [node for node in graph.nodes if node.op == "placeholder"]
    forward = {node for node in results[:outputs] if hasattr(node, "meta")}
    return {
        node.name
        for node, gradient in zip(given, results[outputs:], strict=False)
        if gradient is None and any(_alike(node, each) for each in _computed_from(node) & forward)
    }


def _computed_from(node: Any) -> set[Any]:
    """Return the nodes that are computed from one, directly or not."""
    found: set[Any] = set()
    todo = [node]
    while todo:
        fresh = [user for user in todo.pop().users if user not in found]
        found.update(fresh)
        todo += fresh
    return found


def _alike(one: Any, other: Any) -> bool:
    """True if two nodes are tensors of the same shape and type."""
    tensors = [node.meta.get("val") for node in (one, other)]
    if not all(isinstance(each, torch().Tensor) for each in tensors):
        return False
    return bool(tensors[0].shape == tensors[1].shape and tensors[0].dtype == tensors[1].dtype)


def _draws(node: Any) -> bool:
    """True if an operator draws random numbers."""
    return torch().Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _differs_again(forward: Any, backward: Any, changed: set[str]) -> str:
    """Return the name of a node that both graphs compute and whose second result differs; "" where there is none."""
    computed = {node.name for node in forward.graph.nodes if node.op == "call_function"}
    for node in backward.graph.nodes:
        if node.name in computed and (_draws(node) or any(each.name in changed for each in node.all_input_nodes)):
            return str(node.name)
    return ""


def computed_again(joint: Any, outputs: int) -> None:
    """Let a graph of forward and backward, whose first results are the forward's, compute again what is cheap, each
    right before its first reader."""
    graph = joint.graph
    _without_aliases(graph)
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


def _without_aliases(graph: Any) -> None:
    """Let what reads a tensor by another name read it itself: the partitioner would keep both."""
    for node in list(graph.nodes):
        if node.op == "call_function" and str(node.target) in ALIASES:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


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
        """The nodes that the results of the forward are computed by, and what these nodes give besides."""
        found: set[Any] = set()
        open_ = [node for node in outputs if isinstance(node, torch().fx.Node)]
        while open_:
            node = open_.pop()
            if node not in found:
                found.add(node)
                open_ += node.all_input_nodes
                open_ += (user for user in node.users if user.target is operator.getitem)
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
        self._kept.update(storage(node) for node in tensors if not is_cheap(storage(node)))
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
            elif node in self._kept or not is_cheap(node):
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
        if home.op != "call_function" or home in self._kept or not is_cheap(home):
            return self._viewed(node, home)
        if node in self._again:
            return self._again[node]
        if is_batch_norm(node):
            return self._again.setdefault(node, self._normalized_again(node))
        places = {each: self._copied(each) for each in node.all_input_nodes if not gives_several(each)}
        several = {each: self._several(each) for each in node.all_input_nodes if gives_several(each)}
        with self._graph.inserting_after(_last([node, *places.values(), *several.values()], self._graph)):
            made = self._graph.node_copy(node, lambda each: {**places, **several}.get(each, each))
        return self._again.setdefault(node, made)

    def _viewed(self, node: Any, home: Any) -> Any:
        """A view of what is kept, made again of that: the partitioner may keep one that the forward has."""
        if node is home:
            return node
        if node not in self._again:
            base = self._viewed(node.args[0], home)
            with self._graph.inserting_after(_last([node, base], self._graph)):
                made = self._graph.node_copy(node, lambda each: base if each is node.args[0] else each)
            self._again[node] = made
        return self._again[node]

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
        mean, rstd = result(whole, 1), result(whole, 2)
        x = self._copied(x)
        with self._graph.inserting_after(_last([node, x, rstd, mean], self._graph)):
            variance = self._graph.call_function(aten.pow.Tensor_Scalar, (rstd, -2.0))
        variance.meta["val"] = torch().empty_like(rstd.meta["val"])
        with self._graph.inserting_after(variance):
            again = self._graph.call_function(
                aten._native_batch_norm_legit_no_training.default, (x, scale, bias, mean, variance, 0.0, 0.0)
            )
        unread = rstd.meta["val"].new_empty(0)
        again.meta["val"] = (node.meta["val"], unread, unread)
        with self._graph.inserting_after(again):
            made = self._graph.call_function(operator.getitem, (again, 0))
        made.meta["val"] = node.meta["val"]
        return made


def _inputs(node: Any) -> Iterator[Any]:
    """The tensors that a cheap node is computed of."""
    for each in node.all_input_nodes:
        if not gives_several(each):
            yield each
        elif str(each.target) == BATCH_NORM:
            yield from (each.args[0], result(each, 1), result(each, 2))
        else:
            yield from each.all_input_nodes


def _last(nodes: Sequence[Any], graph: Any) -> Any:
    """The last of these nodes in the graph."""
    wanted = set(nodes)
    return next(node for node in reversed(graph.nodes) if node in wanted)
