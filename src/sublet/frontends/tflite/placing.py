"""A plan of Sublet's as offsets for TensorFlow Lite Micro: one for each tensor of the first subgraph with one place.

TFLM copies what IF and WHILE are given into the subgraphs that they run, and back, tensor by tensor. A plan of Sublet's
moves it all at once, or not at all. So all tensors of other subgraphs are left to TFLM (-1), which plans them around
the others, and so are the operands and results that would not survive its copies.
"""

from __future__ import annotations

from sublet.base.errors import PlanError
from sublet.base.tensor import TensorSpec
from sublet.frontends.tflite.handing_on import destroyed
from sublet.frontends.tflite.model import ALIGNMENT, converted
from sublet.frontends.tflite.offline import Offsets
from sublet.frontends.tflite.program import Program
from sublet.plan import MemoryPlan
from sublet.plan.records import Placement
from sublet.plan.schedule import serial

MOST = (1 << 31) - 1
WHOLE = 8
"""Bits of the smallest elements that TFLM counts as Sublet does."""


def offsets_of(program: Program, plan: MemoryPlan) -> Offsets:
    """Where the tensors of each subgraph lie. Raises PlanError for a plan that TFLM cannot follow."""
    made = converted(program)
    require_plan_for_tflm(plan, plan.schedule == serial(made.model.graph))
    places: dict[str, list[Placement]] = {}
    for place in plan.in_arenas:
        places.setdefault(place.value, []).append(place)
    main = program.subgraphs[0]
    offsets: list[int | None] = []
    for index, tensor in enumerate(main.tensors):
        found = places.get(made.tensors.get(index, ""), [])
        one = len(found) == 1 and not found[0].strides and not found[0].copies
        whole = isinstance(tensor.spec, TensorSpec) and tensor.spec.nbytes and tensor.spec.dtype.bits >= WHOLE
        offsets.append(found[0].region.offset if one and whole and found[0].region.end <= MOST else None)
    for each in list(destroyed(program, offsets)):
        operator = main.operators[each.position]
        for index in {*operator.inputs, *operator.outputs} - {-1}:
            offsets[index] = None
    return tuple(offsets), *(tuple(None for _ in subgraph.tensors) for subgraph in program.subgraphs[1:])


def require_plan_for_tflm(plan: MemoryPlan, in_order: bool) -> None:
    """Raises PlanError for a plan with what TFLM has not: other orders, several arenas, narrow alignment."""
    if plan.alignment % ALIGNMENT:
        raise PlanError(
            f"the plan is aligned to {plan.alignment} bytes, and TensorFlow Lite Micro wants {ALIGNMENT}: "
            f"plan with --align {ALIGNMENT}"
        )
    if len(plan.arenas) > 1:
        raise PlanError("TensorFlow Lite Micro has one arena for tensors: plan without --region")
    if not in_order:
        raise PlanError(
            "TensorFlow Lite Micro runs operators in the order of the file: plan without --order, --streams"
        )
