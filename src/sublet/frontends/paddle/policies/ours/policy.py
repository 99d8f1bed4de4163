"""The passes in order, and the policy that runs all passes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from sublet.frontends.paddle.format.program import Program
from sublet.frontends.paddle.policies.ours.awaited import updates_awaited
from sublet.frontends.paddle.policies.ours.inplace import in_place
from sublet.frontends.paddle.policies.ours.invariants import loop_invariants
from sublet.frontends.paddle.policies.ours.proxies import shape_proxies
from sublet.frontends.paddle.policies.ours.reorder import optimise_early
from sublet.frontends.paddle.policies.ours.temporaries import temporaries_outside

Pass = Callable[[Program, Collection[str]], Program]

PASSES: Mapping[str, Pass] = MappingProxyType(
    {
        "optimise early": lambda program, keep: optimise_early(program),
        "shape proxies": lambda program, keep: shape_proxies(program),
        "loop invariants": lambda program, keep: loop_invariants(program),
        "in place": in_place,
        "temporaries outside": temporaries_outside,
        "updates awaited": updates_awaited,
    }
)


def ours(program: Program, keep: Collection[str] = ()) -> Program:
    """Return the program after all passes. The passes neither rename nor overwrite names in `keep`, to be fetched."""
    for change in PASSES.values():
        program = change(program, keep)
    return program
