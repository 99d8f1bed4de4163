"""Bytes copied by transpositions in a run, and the nodes that read the copies.

    python -m benchmarks.transposes            # training steps in nn at batch 2, ONNX inference at batches 1 and 2

The first number of a training step is without the pass "attention-layout".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import sublet
from benchmarks.models.architectures import ARCHITECTURES
from benchmarks.models.wheels import bound, real_models
from benchmarks.train_steps import training_step
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.op import lookup
from sublet.passes import pass_pipeline


def copying_transposes(graph: Graph) -> list[Node]:
    """Return the transpositions that are no views."""
    nodes = (node for node in graph.walk() if node.op in ("nn.transpose", "onnx.Transpose"))
    return [node for node in nodes if not lookup(node.op).views(node)]


def readers_of(value: Value, graph: Graph) -> Iterator[str]:
    """Yield the operators that read a value, through views."""
    for node in graph.walk():
        if value in node.uses:
            views = [share.output for share in lookup(node.op).views(node)]
            yield from readers_of(node.defs[0], graph) if views else [node.op.rpartition(".")[2]]


def nn_step(name: str, batch: int, with_pass: bool) -> Graph:
    """Return the graph of a training step, with or without the pass that removes transpositions of attentions."""
    passes = pass_pipeline.FUSING
    plain = tuple(
        replace(each, run=lambda graph: graph) if each.name == "attention-layout" else each for each in passes
    )
    pass_pipeline.FUSING = passes if with_pass else plain
    try:
        return training_step(name, batch).model.graph
    finally:
        pass_pipeline.FUSING = passes


def print_row(name: str, before: Graph, graph: Graph) -> None:
    copies = [sum(node.defs[0].nbytes for node in copying_transposes(each)) for each in (before, graph)]
    readers = sorted({reader for node in copying_transposes(graph) for reader in readers_of(node.defs[0], graph)})
    print(f"| {name} | {copies[0]:,} | {copies[1]:,} | {', '.join(readers)} |", flush=True)


def main() -> None:
    print("| network, batch | copied before | copied | readers |\n|---|---|---|---|")
    for name in ("GPT-2 small", "Transformer"):
        print_row(f"{name}, step, 2", nn_step(name, 2, False), nn_step(name, 2, True))
    for batch in (1, 2):
        graph = sublet.compile(ARCHITECTURES["bert"](batch=batch)).graph
        print_row(f"BERT, ONNX, {batch}", graph, graph)
    for model in real_models():
        graph = sublet.compile(bound(model)).graph
        if copying_transposes(graph):
            print_row(f"{model.name}, ONNX, 1", graph, graph)


if __name__ == "__main__":
    main()
