"""Attention without transpositions: the command reads and writes positions before heads.

Requires a legal graph. Ensures that no `nn.attention` and no `nn.attention_gradient` remains with a transposition
around every tensor, where strides cost no time, see `_has_cheap_strides`:

    %q = nn.transpose(%a) {axes = [0, 2, 1, 3]}
    ...                                                   ->      %z = nn.attention(%a, ...) {layout = "bthd"}
    %y = nn.attention(%q, ...) {layout = "bhtd"}
    %z = nn.transpose(%y) {axes = [0, 2, 1, 3]}

The kernels read and write the tensors with strides, so no transposition copies bytes. A transposition with other
readers stays for the other readers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sublet.ir.dataflow import producing_nodes
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.nn.attention import HEADS_FIRST, LAYOUTS, heads_first_shape, is_positions_first
from sublet.ops.nn.command import pick
from sublet.passes.rewriting import Readers, rewrite_runs, run_to_fixpoint

INPUTS_IN_LAYOUT = {"nn.attention": 3, "nn.attention_gradient": 4}
"""The number of inputs in the layout, up to q, k and v; the mask follows."""

MIN_SAMPLE_BYTES = 1 << 16
"""Minimum bytes of the queries of a sample. For smaller samples the kernel's copies out of scratch memory, one call a
sample for each result, take longer than the transpositions. Measured on one core, a training step of an attention takes
1.04 of the time with samples of 16 KiB, 1.00 with 64 KiB, and 0.94 with 256 KiB."""

MAX_POSITIONS = 255
"""Maximum queries of a sample. The kernel cuts longer sequences into tiles, and every tile reads all keys and values:
more reads with strides than one transposition. Measured on one core, a training step of an attention takes 1.05 of the
time with 512 positions."""

MAX_REPEATS = 4
"""Maximum number of repetitions, for transpositions of transpositions."""


def with_attention_in_place(graph: Graph) -> Graph:
    """Return the graph with attentions that read the sources of transpositions and write the results."""
    return run_to_fixpoint(graph, lambda before: rewrite_runs(before, _rewrite_run), MAX_REPEATS)


def _rewrite_run(nodes: Sequence[Node], readers: Readers) -> Sequence[Node]:
    """Return the nodes of a run with every attention between transpositions in the other layout."""
    makers, by_name = producing_nodes(nodes), {node.name: node for node in nodes}
    changed: dict[str, Node] = {}
    removed: set[str] = set()
    for node in nodes:
        count = INPUTS_IN_LAYOUT.get(node.op, 0)
        if not count or node.scratch is not None or not _has_cheap_strides(node, node.inputs[count - 3]):
            continue
        results = node.outputs[: 1 if node.op == "nn.attention" else 3]
        sources = [_source_of(makers.get(value)) if value is not None else None for value in node.inputs[:count]]
        after = [_only_transpose_of(value, readers, by_name) for value in results]
        transposes = [each for each in after if each is not None]
        if None in sources or len(transposes) < len(after):
            continue
        inputs = (*sources, *node.inputs[count:])
        outputs = (*(each.outputs[0] for each in transposes), *node.outputs[len(after) :])
        layout = LAYOUTS[0] if is_positions_first(node.attrs) else LAYOUTS[1]
        changed[node.name] = replace(node, inputs=inputs, outputs=outputs, attrs={**node.attrs, "layout": layout})
        removed.update(each.name for each in transposes)
    return [changed.get(node.name, node) for node in nodes if node.name not in removed]


def _has_cheap_strides(node: Node, query: Value | None) -> bool:
    """True if the command takes no longer with strides than with transpositions."""
    batch, _, positions, _ = heads_first_shape(query, node.attrs)
    return query is not None and query.nbytes >= batch * MIN_SAMPLE_BYTES > 0 and positions <= MAX_POSITIONS


def _source_of(node: Node | None) -> Value | None:
    """Return the source of a transposition between the layouts; None for another node."""
    if node is None or node.op != "nn.transpose" or node.scratch is not None:
        return None
    axes = tuple(axis % len(HEADS_FIRST) for axis in pick(node.attrs, "axes"))
    return node.inputs[0] if axes == HEADS_FIRST else None


def _only_transpose_of(value: Value | None, readers: Readers, by_name: Mapping[str, Node]) -> Node | None:
    """Return the transposition between the layouts that alone reads a value; None for other readers."""
    names = readers.get(value, ()) if value is not None else ()
    reader = by_name.get(names[0]) if len(names) == 1 else None
    return reader if _source_of(reader) is not None else None
