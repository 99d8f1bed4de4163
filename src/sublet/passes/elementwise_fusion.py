"""Element-wise fusion: replace consecutive element-wise commands over large tensors by one blocked `nn.chain`.

Requires a legal graph. Leaves small tensors alone: small tensors stay in the cache anyway. A value read outside of the
chain is never fused away, and no chain keeps more bytes alive than the fused commands would: where a foreign node lies
between, the operands with their last use in a fused command are no larger than the result of the command.

    %a = nn.mul(%x, %y)
    %b = nn.exp(%a)              ->      %c = nn.chain(%x, %y) {steps = ["mul x0 x1", "exp s0", "add s1 x0"]}
    %c = nn.add(%b, %x)

A chain of k commands reads each input and writes the result once instead of k times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sublet.base.tensor import TensorSpec
from sublet.ir.dataflow import producer_positions
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.nn.command import PREFIX
from sublet.ops.nn.fused import MAX_CHAIN_INPUTS, STEPS, ChainStep
from sublet.passes.rewriting import Readers, rewrite_runs

MIN_CHAIN_BYTES = 16 << 20
"""Minimum bytes of the result of a chain. Smaller results wait in the last-level cache for the next command.

Measured on one core with 32 MiB of cache: at 8 MiB six steps take equally long with and without a chain and two steps
take longer; at 16 MiB six steps take 0.6 of the time and two steps as long; at 64 MiB 0.5 and 0.8."""

MAX_STEPS = 32
"""Maximum number of steps of a chain."""


def with_chains(graph: Graph, smallest: int = MIN_CHAIN_BYTES) -> Graph:
    """Return the graph with chains over results of at least `smallest` bytes."""
    return rewrite_runs(graph, lambda nodes, readers: _fuse_run(nodes, readers, smallest))


def _fuse_run(nodes: Sequence[Node], readers: Readers, smallest: int) -> list[Node]:
    """Return the nodes of one run with chains, grown backwards from the last node of each chain."""
    positions = {node.name: i for i, node in enumerate(nodes)}
    maker = producer_positions(nodes)
    swallowed: set[int] = set()
    chains: dict[int, Node] = {}
    for root in reversed(range(len(nodes))):
        if root in swallowed or not is_chainable(nodes[root]) or nodes[root].defs[0].nbytes < smallest:
            continue
        members = _ChainCluster(nodes, readers, maker, positions, root).grow_members()
        if len(members) > 1:
            swallowed.update(members)
            chains[root] = _chain_node([nodes[i] for i in sorted(members)])
    return [chains.get(i, node) for i, node in enumerate(nodes) if i in chains or i not in swallowed]


def is_chainable(node: Node) -> bool:
    """True if the node can be a step of a chain."""
    name = node.op.removeprefix(PREFIX)
    if not node.op.startswith(PREFIX) or name not in STEPS or node.scratch is not None or None in node.inputs:
        return False
    tensors = all(isinstance(value.spec, TensorSpec) for value in (*node.uses, *node.defs))
    return tensors and bool(node.uses) and all(isinstance(value, int | float) for value in node.attrs.values())


@dataclass
class _ChainCluster:
    """The nodes of one chain. The chain runs at the position of `root`, the last node."""

    nodes: Sequence[Node]
    readers: Readers
    maker_of: dict[Value, int]
    position_of: dict[str, int]
    root: int

    def __post_init__(self) -> None:
        self.members = {self.root}
        self.shape = _result_shape(self.nodes[self.root])

    def grow_members(self) -> set[int]:
        """Add producers, the latest first, while legal; return the positions of all members."""
        refused: set[int] = set()
        while len(self.members) < MAX_STEPS:
            makers = {self.maker_of[v] for i in self.members for v in self.nodes[i].uses if v in self.maker_of}
            candidates = sorted(makers - self.members - refused)
            if not candidates:
                break
            last = candidates[-1]
            if self._can_join(last):
                self.members.add(last)
                refused.clear()
            else:
                refused.add(last)
        return self.members

    def _can_join(self, i: int) -> bool:
        """True if node `i` can become a member: same shape, no reader outside, few inputs, no more bytes alive."""
        node = self.nodes[i]
        if not is_chainable(node) or _result_shape(node) != self.shape:
            return False
        if not all(self.position_of.get(name, -1) in self.members for name in self.readers.get(node.defs[0], [""])):
            return False
        enlarged = self.members | {i}
        leaves = {v for m in enlarged for v in self.nodes[m].uses if self.maker_of.get(v, -1) not in enlarged}
        if len(leaves) > MAX_CHAIN_INPUTS:
            return False
        alone = set(range(i, self.root + 1)) <= enlarged
        return alone or self._bytes_kept_longer(i, enlarged) <= node.defs[0].nbytes

    def _bytes_kept_longer(self, i: int, joined: set[int]) -> int:
        """Return the bytes kept alive by the chain alone: operands of member `i` with all readers before the chain."""
        reached, held = {i}, set()
        todo = [i]
        while todo:
            for value in self.nodes[todo.pop()].uses:
                maker = self.maker_of.get(value, -1)
                if maker in joined and maker not in reached:
                    reached.add(maker)
                    todo.append(maker)
                elif maker not in joined and all(map(self._runs_before_root, self.readers[value])):
                    held.add(value)
        return sum(value.nbytes for value in held)

    def _runs_before_root(self, name: str) -> bool:
        """True if the reader with this name runs before the chain."""
        return bool(name) and self.position_of.get(name, -1) < self.root


def _result_shape(node: Node) -> tuple[int, ...]:
    spec = node.defs[0].spec
    assert isinstance(spec, TensorSpec)
    return spec.shape


def _chain_node(members: Sequence[Node]) -> Node:
    """Return the chain node computing all members."""
    names: dict[Value, str] = {}
    inputs: list[Value] = []
    steps: list[str] = []
    for i, node in enumerate(members):
        for value in node.uses:
            if value not in names:
                names[value] = f"x{len(inputs)}"
                inputs.append(value)
        operands = tuple(names[value] for value in node.uses)
        steps.append(ChainStep(STEPS[node.op.removeprefix(PREFIX)], operands, node.attrs).text)
        names[node.defs[0]] = f"s{i}"
    last = members[-1]
    return Node(last.name, "nn.chain", tuple(inputs), last.outputs, {"steps": tuple(steps)}, last.source)
