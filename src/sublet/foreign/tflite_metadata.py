"""The offline memory plan in the metadata of a .tflite file, which TensorFlow Lite Micro obeys.

Judged are the tensors of the first subgraph. TFLM copies the operands of IF and WHILE into other subgraphs and back,
tensor by tensor, which a replay of the model does not: these, and all in other subgraphs, count as left out.
"""

from __future__ import annotations

from sublet.errors import PlanError
from sublet.foreign.placed import ForeignPlan, Placed
from sublet.frontends.tflite.model import ALIGNMENT, converted
from sublet.frontends.tflite.offline import METADATA, offline_plan
from sublet.frontends.tflite.placing import copied
from sublet.frontends.tflite.program import Program
from sublet.ir.graph import Graph

TOOL = "TensorFlow Lite Micro's offline planning"


def placed_from_tflite(program: Program) -> ForeignPlan:
    """The plan in a file. Raises PlanError when there is none."""
    offsets = offline_plan(program)
    if offsets is None:
        raise PlanError(f"{program.where} has no plan in its metadata (no {METADATA})")
    made = converted(program)
    kept = {weight.name for weight in made.model.graph.weights}
    names = {index: name for index, name in made.tensors.items() if name not in kept}
    alone = copied(program)
    placed = {index: offset for index, offset in enumerate(offsets[0]) if offset is not None and index not in alone}
    return ForeignPlan(
        tuple(Placed(names[index], offset) for index, offset in placed.items() if index in names),
        TOOL,
        alignment=ALIGNMENT,
        left_out=tuple(_left_out(made.model.graph, {names[index] for index in placed if index in names})),
    )


def _left_out(graph: Graph, placed: set[str]) -> list[str]:
    """The values that lie in TFLM's arena, and are not judged."""
    outside = {*graph.weights, *graph.updated, *(source for _, source in graph.updates)}
    return [
        value.name for value in graph.values() if value not in outside and value.nbytes and value.name not in placed
    ]
