"""The offline plan that a .tflite file carries for TensorFlow Lite Micro, as a foreign plan of its first subgraph.

TFLM finds places by itself for tensors at -1: they are left out, and so are constants, which lie in the file. It
copies the operands of IF and WHILE into other subgraphs and back, tensor by tensor, which a replay of the model does
not: these, and the tensors of other subgraphs, are left out too. What outlasts a run has memory of its own there.
"""

from __future__ import annotations

from sublet.errors import PlanError
from sublet.foreign.placed import ForeignPlan, Placed
from sublet.frontends.tflite.model import ALIGNMENT, converted
from sublet.frontends.tflite.offline import METADATA, offline_plan
from sublet.frontends.tflite.placing import copied
from sublet.frontends.tflite.program import Program


def placed_from_tflite(program: Program) -> ForeignPlan:
    """The plan in a file. Raises PlanError when there is none."""
    offsets = offline_plan(program)
    if offsets is None:
        raise PlanError(f"{program.where} has no plan in its metadata ({METADATA})")
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
    return ForeignPlan(tuple(tensors), METADATA, alignment=ALIGNMENT, left_out=tuple(left_out))
