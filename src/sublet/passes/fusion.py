"""Fusion: groups of commands become one command, and element-wise sequences run block by block.

Pattern fusion: replace a group of commands by an equivalent command.

Requires a legal graph. Ensures that none of the following groups remains with a single reader of every inner value. The
softmax of the first group may have more readers: the fused command also returns the softmax.

    categorical_cross_entropy(softmax(x), labels)        softmax_cross_entropy(x, labels)
    binary_cross_entropy(sigmoid(x), t)                  sigmoid_binary_cross_entropy(x, t)
    add(matmul(x, w), b)                                 linear(x, w, b), gemm(x, w, b)
    add(linear(x, w), b)                                 linear(x, w, b)
    add(conv(x, w), b)                                   conv(x, w, b)
    matmul(softmax(matmul(q, k^T) * c + mask), v)        attention(q, k, v, mask)

An activation after a convolution is not fused: the planner computes the activation in place, and oneDNN's convolution
with a fused activation was not faster through PyTorch.

The fused command runs at the position of the first member if all operands are defined there, and then extends no live
range; otherwise the pass fuses only adjacent members. [NNC fuses the first two.]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sublet.base.tensor import TensorSpec
from sublet.ir.dataflow import producer_positions, producing_nodes
from sublet.ir.graph import Attr, Graph, Node, Value
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import PREFIX, pick, spec_of
from sublet.ops.nn.fused import MAX_CHAIN_INPUTS, STEPS, ChainStep
from sublet.passes.rewriting import Readers, rewrite_runs, run_to_fixpoint

# The command groups replaced by pattern fusion. Each matcher starts from the last command of a group.


@dataclass(frozen=True)
class FusionGroup:
    """A match: `members`, the commands to replace, and `fused`, the replacing commands.

    `internal_only` is True if no node outside of the group reads a value between the members.
    """

    members: tuple[Node, ...]
    fused: tuple[Node, ...]
    internal_only: bool = True


class FusionLevel:
    """The nodes of one run, with positions, definitions and readers."""

    def __init__(self, nodes: Sequence[Node], readers: Readers) -> None:
        self.position_of = {node.name: i for i, node in enumerate(nodes)}
        self._maker = producing_nodes(nodes)
        self._readers = readers

    def maker_position(self, value: Value) -> int:
        """Return the position of the node defining a value; -1 for a value defined before the run."""
        return self.position_of[self._maker[value].name] if value in self._maker else -1

    def matching_maker(self, value: Value | None, *ops: str, shared: bool = False) -> Node | None:
        """Return the node defining `value` as first output, if the op is in `ops`; else None.

        Unless `shared`, the value must have a single reader.
        """
        node = self._maker.get(value) if value is not None else None
        if node is None or value is None or node.op not in ops or node.scratch is not None or node.outputs[0] != value:
            return None
        return node if shared or self.has_single_reader(value) else None

    def has_single_reader(self, value: Value) -> bool:
        """True if exactly one node reads the value, and the reader is in the run."""
        readers = self._readers.get(value, ())
        return len(readers) == 1 and readers[0] in self.position_of


Matcher = Callable[[Node, FusionLevel], FusionGroup | None]
"""(last command, level) -> the matched group, or None."""


def _fused_node(
    like: Node, op: str, inputs: Sequence[Value | None], outputs: Sequence[Value | None], **attrs: Attr
) -> Node:
    """Return a command with the name and source of `like`."""
    record = COMMANDS[op.removeprefix(PREFIX)]
    return Node(like.name, op, tuple(inputs), tuple(outputs), record.complete_attributes(attrs), like.source)


def _is_over_last_axis(node: Node) -> bool:
    """True if the node normalises over the last axis."""
    axis, rank = pick(node.attrs, "axis"), len(spec_of(node.defs[0]).shape)
    return bool(axis in (-1, rank - 1))


def _match_cross_entropy(node: Node, level: FusionLevel) -> FusionGroup | None:
    """Match softmax followed by categorical cross-entropy."""
    softmax = level.matching_maker(node.inputs[0], "nn.softmax", shared=True)
    if softmax is None or not _is_over_last_axis(softmax) or node.inputs[0] == node.inputs[1]:
        return None
    outputs = (node.outputs[0], softmax.outputs[0])
    made = _fused_node(node, "nn.softmax_cross_entropy", (softmax.inputs[0], node.inputs[1]), outputs)
    return FusionGroup((softmax, node), (made,), internal_only=level.has_single_reader(softmax.defs[0]))


def _match_binary_cross_entropy(node: Node, level: FusionLevel) -> FusionGroup | None:
    """Match sigmoid followed by binary cross-entropy."""
    sigmoid = level.matching_maker(node.inputs[0], "nn.sigmoid")
    if sigmoid is None or node.inputs[0] == node.inputs[1]:
        return None
    made = _fused_node(node, "nn.sigmoid_binary_cross_entropy", (sigmoid.inputs[0], node.inputs[1]), node.outputs)
    return FusionGroup((sigmoid, node), (made,))


def _match_bias_add(node: Node, level: FusionLevel) -> FusionGroup | None:
    """Match a bias added to a product or a convolution. Of two products, the later one absorbs the addition."""
    for position in sorted((0, 1), key=lambda position: -level.maker_position(node.uses[position])):
        bias = node.inputs[1 - position]
        before = level.matching_maker(node.inputs[position], "nn.matmul", "nn.linear", "nn.conv")
        if before is None or bias is None or bias == node.inputs[position]:
            continue
        if before.defs[0].spec != node.defs[0].spec:
            continue
        made = ADD_BIAS[before.op](before, bias, node, level)
        if made is not None:
            return FusionGroup((before, node), (made,))
    return None


def _add_bias_to_matmul(product: Node, bias: Value, node: Node, level: FusionLevel) -> Node | None:
    """Return the product with the bias, as `nn.linear` or `nn.gemm`, or None."""
    a, b = product.uses
    flags = {key: pick(product.attrs, key) for key in ("transpose_a", "transpose_b")}
    ranks = len(spec_of(a).shape), len(spec_of(b).shape)
    columns = spec_of(node.defs[0]).shape[-1:]
    if ranks[1] == 2 and flags == {"transpose_a": 0, "transpose_b": 1} and spec_of(bias).shape == columns:
        return _fused_node(node, "nn.linear", (a, b, bias), node.outputs)
    if ranks == (2, 2):
        return _fused_node(node, "nn.gemm", (a, b, bias), node.outputs, **flags)
    return None


def _add_bias_to_linear(product: Node, bias: Value, node: Node, level: FusionLevel) -> Node | None:
    """Return the linear command with the bias, or None."""
    has_bias = len(product.inputs) > 2 and product.inputs[2] is not None
    if has_bias or spec_of(bias).shape != spec_of(node.defs[0]).shape[-1:]:
        return None
    return _fused_node(node, "nn.linear", (*product.inputs[:2], bias), node.outputs)


def _add_bias_to_conv(before: Node, bias: Value, node: Node, level: FusionLevel) -> Node | None:
    """Return the convolution with the bias, or None.

    The bias has one element a channel and may be reshaped to lie along the channel axis.
    """
    reshape = level.matching_maker(bias, "nn.reshape", shared=True)
    source = reshape.uses[0] if reshape is not None else bias
    rank, channels = len(spec_of(node.defs[0]).shape), spec_of(before.uses[1]).shape[0]
    shape = (1,) * (rank - len(spec_of(bias).shape)) + spec_of(bias).shape
    axis = rank - 1 if before.attrs["layout"] == "nhwc" else 1
    along = tuple(channels if i == axis else 1 for i in range(rank))
    has_bias = len(before.inputs) > 2 and before.inputs[2] is not None
    if has_bias or shape != along or spec_of(source).shape != (channels,):
        return None
    return _fused_node(node, "nn.conv", (*before.inputs[:2], source), node.outputs, **before.attrs)


AddBias = Callable[[Node, Value, Node, FusionLevel], Node | None]
"""(command without a bias, bias, command adding the bias, level) -> the command with the bias, or None."""

ADD_BIAS: Mapping[str, AddBias] = {
    "nn.matmul": _add_bias_to_matmul,
    "nn.linear": _add_bias_to_linear,
    "nn.conv": _add_bias_to_conv,
}


def _match_attention(node: Node, level: FusionLevel) -> FusionGroup | None:
    """Match attention backwards, from the product with v to the product of q and k."""
    softmax = level.matching_maker(node.inputs[0], "nn.softmax")
    if softmax is None or not _is_over_last_axis(softmax) or not _has_transposes(node, transpose_b=0):
        return None
    members = [node, softmax]
    scores, mask = softmax.uses[0], None
    added = level.matching_maker(scores, "nn.add")
    if added is not None:
        found = _scores_and_mask(added, level)
        if found is None:
            return None
        scores, mask = found
        members.append(added)
    scale = 1.0
    scaled = level.matching_maker(scores, "nn.mul", "nn.div")
    if scaled is not None:
        constant = scaled.uses[1]
        if constant.literal is None or len(constant.literal) != 1 or not constant.literal[0]:
            return None
        number = float(constant.literal[0])
        scale = number if scaled.op == "nn.mul" else 1 / number
        scores = scaled.uses[0]
        members.append(scaled)
    product = level.matching_maker(scores, "nn.matmul")
    if product is None or not _has_transposes(product, transpose_b=1):
        return None
    return _attention_group(node, [*members, product], (*product.uses, node.uses[1], mask), scale)


def _has_transposes(product: Node, transpose_b: int) -> bool:
    """True if the product transposes the second factor as given by `transpose_b`, and never the first."""
    return product.attrs["transpose_a"] == 0 and product.attrs["transpose_b"] == transpose_b


def _scores_and_mask(added: Node, level: FusionLevel) -> tuple[Value, Value] | None:
    """Return the operands of the addition as (scores, mask), or None."""
    for position in (0, 1):
        scores, mask = added.uses[position], added.uses[1 - position]
        if (
            scores.spec == added.defs[0].spec
            and level.matching_maker(scores, "nn.matmul", "nn.mul", "nn.div") is not None
        ):
            return scores, mask
    return None


def _attention_group(
    node: Node, members: Sequence[Node], inputs: Sequence[Value | None], scale: float
) -> FusionGroup | None:
    """Return the group for an attention, or None if the shapes do not allow the fused command."""
    q, k, v = (spec_of(value) for value in inputs[:3] if value is not None)
    same = len(q.shape) == 4 and q.shape[:2] == k.shape[:2] == v.shape[:2]
    product = members[-1].defs[0]
    if not same or any(member.defs[0].spec != product.spec for member in members[1:]):
        return None
    # The softmax is gone, so its name is free: the logarithms of the sums take the name.
    sums = Value(members[1].defs[0].name, TensorSpec(q.dtype, q.shape[:3]))
    given = inputs if inputs[3] is not None else inputs[:3]
    made = _fused_node(node, "nn.attention", given, (node.outputs[0], sums), scale=scale, causal=0)
    return FusionGroup(tuple(reversed(members)), (made,))


PATTERNS: Mapping[str, Matcher] = {
    "nn.categorical_cross_entropy": _match_cross_entropy,
    "nn.binary_cross_entropy": _match_binary_cross_entropy,
    "nn.add": _match_bias_add,
    "nn.matmul": _match_attention,
}
"""The matcher by the op of the last command."""


MAX_REPEATS = 10
"""Maximum number of repetitions: a fused command may be a member of a further group."""


def with_fused_patterns(graph: Graph) -> Graph:
    """Return the graph after pattern fusion to a fixpoint."""
    return run_to_fixpoint(graph, lambda before: rewrite_runs(before, _fuse_patterns_in_run), MAX_REPEATS)


def _fuse_patterns_in_run(nodes: Sequence[Node], readers: Readers) -> Sequence[Node]:
    """Return the nodes of one run with every matched group replaced."""
    level = FusionLevel(nodes, readers)
    replaced: set[str] = set()
    insertions: dict[int, list[Node]] = {}
    for node in nodes:
        if node.op not in PATTERNS or node.name in replaced:
            continue
        group = PATTERNS[node.op](node, level)
        if group is None or any(member.name in replaced for member in group.members):
            continue
        position = _insert_position(group, level)
        if position is not None:
            replaced.update(member.name for member in group.members)
            insertions.setdefault(position, []).extend(group.fused)
    rewritten: list[Node] = []
    for i, node in enumerate(nodes):
        rewritten += insertions.get(i, ())
        if node.name not in replaced:
            rewritten.append(node)
    return rewritten


def _insert_position(group: FusionGroup, level: FusionLevel) -> int | None:
    """Return a position for the fused command, to insert before, without longer live ranges; None if impossible."""
    places = sorted(level.position_of[member.name] for member in group.members)
    first, last = places[0], places[-1]
    inside = {value for node in group.fused for value in node.defs}
    ready = max((level.maker_position(v) for node in group.fused for v in node.uses if v not in inside), default=-1)
    held = min(member.defs[0].nbytes for member in group.members[:-1])
    if ready < first and group.members[-1].defs[0].nbytes <= held:
        return first
    return last if places == list(range(first, last + 1)) and group.internal_only else None


# Element-wise fusion: replace consecutive element-wise commands over large tensors by one blocked `nn.chain`.
#
# Requires a legal graph. Leaves small tensors alone: small tensors stay in the cache anyway. A value read outside of
# the chain is never fused away, and no chain keeps more bytes alive than the fused commands would: where a foreign node
# lies between, the operands with their last use in a fused command are no larger than the result of the command.
#
#     %a = nn.mul(%x, %y)
#     %b = nn.exp(%a)              ->      %c = nn.chain(%x, %y) {steps = ["mul x0 x1", "exp s0", "add s1 x0"]}
#     %c = nn.add(%b, %x)
#
# A chain of k commands reads each input and writes the result once instead of k times.

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
