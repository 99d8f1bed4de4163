"""Conversion of a memory plan to TFLM offsets: an offset per tensor with a single place in the first subgraph.

TFLM copies operands of IF and WHILE into the called subgraphs, and results back, tensor by tensor. Sublet's plan moves
all operands at once, or shares the bytes. So tensors of called subgraphs get no offset (-1): TFLM places the tensors
around the planned tensors. Operands and results overwritten by TFLM's copies get no offset either.
"""

from __future__ import annotations

from sublet.base.errors import PlanError
from sublet.base.tensor import TensorSpec
from sublet.frontends.tflite.control_flow_copies import lost_tensors
from sublet.frontends.tflite.model import ALIGNMENT, convert_program
from sublet.frontends.tflite.offline_plan import Offsets
from sublet.frontends.tflite.program import TFLiteProgram
from sublet.plan import MemoryPlan
from sublet.plan.records import Placement
from sublet.plan.schedule import serial_schedule

MAX_OFFSET = (1 << 31) - 1
MIN_ELEMENT_BITS = 8
"""The smallest element size for which TFLM and Sublet agree on tensor sizes, in bits."""


def offsets_of_plan(program: TFLiteProgram, plan: MemoryPlan) -> Offsets:
    """Return the offsets of the tensors of each subgraph. Raises PlanError for a plan unsupported by TFLM."""
    conversion = convert_program(program)
    require_plan_for_tflm(plan, plan.schedule == serial_schedule(conversion.model.graph))
    places: dict[str, list[Placement]] = {}
    for place in plan.in_arenas:
        places.setdefault(place.value, []).append(place)
    main = program.subgraphs[0]
    offsets: list[int | None] = []
    for index, tensor in enumerate(main.tensors):
        placements = places.get(conversion.value_names.get(index, ""), [])
        is_single = len(placements) == 1 and not placements[0].strides and not placements[0].copies
        is_counted = (
            isinstance(tensor.spec, TensorSpec) and tensor.spec.nbytes and tensor.spec.dtype.bits >= MIN_ELEMENT_BITS
        )
        offsets.append(
            placements[0].region.offset if is_single and is_counted and placements[0].region.end <= MAX_OFFSET else None
        )
    for each in list(lost_tensors(program, offsets)):
        operator = main.operators[each.position]
        for index in {*operator.inputs, *operator.outputs} - {-1}:
            offsets[index] = None
    return tuple(offsets), *(tuple(None for _ in subgraph.tensors) for subgraph in program.subgraphs[1:])


def require_plan_for_tflm(plan: MemoryPlan, in_order: bool) -> None:
    """Raise PlanError for a plan unsupported by TFLM: another order, several arenas, alignment below 16 bytes.

    `in_order` is True if the plan runs the operators in file order.
    """
    if plan.alignment % ALIGNMENT:
        raise PlanError(
            f"the plan is aligned to {plan.alignment} bytes, and TensorFlow Lite Micro requires {ALIGNMENT}: "
            f"plan with --align {ALIGNMENT}"
        )
    if len(plan.arenas) > 1:
        raise PlanError("TensorFlow Lite Micro has one arena for tensors: plan without --region")
    if not in_order:
        raise PlanError(
            "TensorFlow Lite Micro runs operators in the order of the file: plan without --order, --streams"
        )
