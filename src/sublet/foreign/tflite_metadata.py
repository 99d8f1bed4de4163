"""The offline memory plan in the metadata of a .tflite file, which TensorFlow Lite Micro obeys.

Judged are the tensors of the first subgraph. TFLM copies the operands of IF and WHILE into other subgraphs and back,
tensor by tensor, which a replay of the model does not: these, and all in other subgraphs, count as left out. What
outlasts a run lies in memory of its own there.
"""

from __future__ import annotations

from sublet.errors import PlanError
from sublet.foreign.placed import ForeignPlan, Placed
from sublet.frontends.tflite.model import ALIGNMENT, converted
from sublet.frontends.tflite.offline import METADATA, offline_plan
from sublet.frontends.tflite.placing import copied
from sublet.frontends.tflite.program import Program

TOOL = "TensorFlow Lite Micro's offline planning"


def placed_from_tflite(program: Program) -> ForeignPlan:
    """The plan in a file. Raises PlanError when there is none."""
    offsets = offline_plan(program)
    if offsets is None:
        raise PlanError(f"{program.where} has no plan in its metadata (no {METADATA})")
    made = converted(program)
    alone = copied(program)
    tensors = [
        Placed(made.tensors[index], offset)
        for index, offset in enumerate(offsets[0])
        if offset is not None and index in made.tensors and index not in alone
    ]
    tensors += [Placed(name, 0, f"variable {'/'.join(key[1:])}") for name, key in made.outlasting.items()]
    placed = {tensor.name for tensor in tensors} | {weight.name for weight in made.model.graph.weights}
    left_out = (value.name for value in made.model.graph.values() if value.nbytes and value.name not in placed)
    return ForeignPlan(tuple(tensors), TOOL, alignment=ALIGNMENT, left_out=tuple(left_out))
