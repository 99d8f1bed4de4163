"""Reader of a .tflite file's offline plan for TensorFlow Lite Micro (TFLM), as a foreign plan of the first subgraph.

TFLM itself places the tensors at -1, and all tensors of a file without an offline plan. The plan leaves out these
tensors, constants (stored in the file), and tensors of further subgraphs. TFLM copies the operands of IF and WHILE into
the subgraph and back, tensor by tensor. A replay of the model copies all operands at once, so operands overwritten
during the copies are found here. Variable tensors keep their content between runs, in separate memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sublet.base.errors import Finding
from sublet.checker.external.external_plan import ForeignPlan, PlacedTensor
from sublet.integrations.tflite.offline_plan import METADATA, offline_plan
from sublet.integrations.tflite.plan_offsets import lost_tensors
from sublet.integrations.tflite.program import TFLiteProgram
from sublet.integrations.tflite.reader import ALIGNMENT, convert_program, read_program
from sublet.ir.model import Model

OWN_PLAN = "TensorFlow Lite Micro's own plan"
"""The tool of a file without an offline plan, as `sublet export --to tflm` leaves a file if no offsets help."""


def plan_from_tflite(program: TFLiteProgram) -> ForeignPlan:
    """Return the plan in a .tflite file; a plan without any place if TFLM places all tensors itself."""
    offsets = offline_plan(program)
    conversion = convert_program(program)
    tensors = [
        PlacedTensor(conversion.value_names[index], offset)
        for index, offset in enumerate(offsets[0] if offsets else ())
        if offset is not None and index in conversion.value_names
    ]
    if offsets is not None:
        variables = conversion.persistent.items()
        tensors += [PlacedTensor(name, 0, f"variable {'/'.join(key[1:])}") for name, key in variables]
    placed_names = {tensor.name for tensor in tensors} | {weight.name for weight in conversion.model.graph.weights}
    left_out = (
        value.name for value in conversion.model.graph.values() if value.nbytes and value.name not in placed_names
    )
    findings = _overwritten_operands(program, offsets[0]) if offsets else ()
    tool = METADATA if offsets else OWN_PLAN
    return ForeignPlan(tuple(tensors), tool, alignment=ALIGNMENT, left_out=tuple(left_out), findings=tuple(findings))


def _overwritten_operands(program: TFLiteProgram, offsets: Sequence[int | None]) -> Iterator[Finding]:
    """Yield a finding for each operand overwritten before TFLM has copied it."""
    main = program.subgraphs[0]
    for overwrite in lost_tensors(program, offsets):
        operator = main.operators[overwrite.position]
        names = [main.tensors[index].name[:80] for index in (overwrite.lost, overwrite.written)]
        yield Finding(
            "clobbered",
            f"operator {overwrite.position}: {operator.name}",
            f"TensorFlow Lite Micro copies one tensor after another: {names[0]!r} is overwritten by {names[1]!r}",
            "place the two apart",
        )


def read_embedded_plan(model: Model, path: Path) -> tuple[Model, ForeignPlan]:
    """Return the model and the plan in its file, see `plan_from_tflite`."""
    return model, plan_from_tflite(read_program(path))
