"""The offline plan that a .tflite file carries for TensorFlow Lite Micro, as a foreign plan of its first subgraph.

TFLM finds places by itself for tensors at -1, and for those of the other subgraphs when they are called from this one:
they are left out, and so are constants, which lie in the file.
"""

from __future__ import annotations

from sublet.errors import PlanError
from sublet.foreign.placed import ForeignPlan, Placed
from sublet.frontends.tflite.model import ALIGNMENT, converted
from sublet.frontends.tflite.offline import METADATA, offline_plan
from sublet.frontends.tflite.program import Program


def placed_from_tflite(program: Program) -> ForeignPlan:
    """The plan in a file. Raises PlanError when there is none, or one that gives a tensor two places."""
    offsets = offline_plan(program)
    if offsets is None:
        raise PlanError(f"{program.where} has no plan in its metadata ({METADATA})")
    made = converted(program)
    constants = {value.name for value in made.model.graph.constants}
    placed: dict[str, Placed] = {}
    left: dict[str, None] = {}
    for index, offset in enumerate(offsets[0] if offsets else ()):
        name = made.tensors.get(index)
        if name is None or name in constants:
            continue
        if offset is None:
            left[name] = None
        elif placed.setdefault(name, Placed(name, offset)) != Placed(name, offset):
            raise PlanError(
                f"{program.where}: tensor {index}, {name!r}, has two places: {placed[name].offset}, {offset}"
            )
    names = tuple(name for name in left if name not in placed)
    return ForeignPlan(tuple(placed.values()), METADATA, alignment=ALIGNMENT, left_out=names)
