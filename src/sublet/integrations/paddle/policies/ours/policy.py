"""The passes in order, and the policy that runs all passes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from sublet.integrations.paddle.format.program import PaddleProgram
from sublet.integrations.paddle.policies.ours.inplace import rename_in_place, use_shape_proxies
from sublet.integrations.paddle.policies.ours.temporaries import assign_loop_invariants, move_temporaries_outside
from sublet.integrations.paddle.policies.ours.update_order import add_update_barriers, run_updates_early

Pass = Callable[[PaddleProgram, Collection[str]], PaddleProgram]

PASSES: Mapping[str, Pass] = MappingProxyType(
    {
        "optimise early": lambda program, keep: run_updates_early(program),
        "shape proxies": lambda program, keep: use_shape_proxies(program),
        "loop invariants": lambda program, keep: assign_loop_invariants(program),
        "in place": rename_in_place,
        "temporaries outside": move_temporaries_outside,
        "updates awaited": add_update_barriers,
    }
)


def apply_own_policy(program: PaddleProgram, keep: Collection[str] = ()) -> PaddleProgram:
    """Return the program after all passes. The passes neither rename nor overwrite names in `keep`, to be fetched."""
    for change in PASSES.values():
        program = change(program, keep)
    return program
