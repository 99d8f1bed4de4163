"""The offline plan that a .tflite file carries for TensorFlow Lite Micro, as a foreign plan of its first subgraph.

TFLM finds places by itself for tensors at -1: they are left out, and so are constants, which lie in the file, and the
tensors of other subgraphs. It copies the operands of IF and WHILE into those and back, tensor by tensor, which a
replay of the model does at one go: what does not survive that is found here. What outlasts a run has memory of its
own there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sublet.base.errors import Finding, PlanError
from sublet.foreign.placed import ForeignPlan, Placed
from sublet.frontends.tflite.handing_on import destroyed
from sublet.frontends.tflite.model import ALIGNMENT, converted
from sublet.frontends.tflite.offline import METADATA, offline_plan
from sublet.frontends.tflite.program import Program


def placed_from_tflite(program: Program) -> ForeignPlan:
    """The plan in a file. Raises PlanError when there is none."""
    offsets = offline_plan(program)
    if offsets is None:
        raise PlanError(f"{program.where} has no plan in its metadata ({METADATA})")
    made = converted(program)
    tensors = [
        Placed(made.tensors[index], offset)
        for index, offset in enumerate(offsets[0])
        if offset is not None and index in made.tensors
    ]
    tensors += [Placed(name, 0, f"variable {'/'.join(key[1:])}") for name, key in made.outlasting.items()]
    placed = {tensor.name for tensor in tensors} | {weight.name for weight in made.model.graph.weights}
    left_out = (value.name for value in made.model.graph.values() if value.nbytes and value.name not in placed)
    findings = _not_surviving(program, offsets[0])
    return ForeignPlan(
        tuple(tensors), METADATA, alignment=ALIGNMENT, left_out=tuple(left_out), findings=tuple(findings)
    )


def _not_surviving(program: Program, offsets: Sequence[int | None]) -> Iterator[Finding]:
    """What is lost while operands are copied."""
    main = program.subgraphs[0]
    for each in destroyed(program, offsets):
        operator = main.operators[each.position]
        names = [main.tensors[index].name[:80] for index in (each.lost, each.written)]
        yield Finding(
            "clobbered",
            f"operator {each.position}: {operator.name}",
            f"TensorFlow Lite Micro copies one tensor after another: {names[0]!r} is overwritten by {names[1]!r}",
            "place the two apart",
        )
