"""`sublet.paddle`: the memory optimization transpiler for programs of Paddle, as its users know it.

    import sublet
    small = sublet.paddle.transpile(program)          # once fluid.memory_optimize(program)

It needs no Paddle: a program is bytes, or an object with Paddle's own way to bytes and back.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any

from sublet.base.errors import ModelError
from sublet.frontends.paddle.format.decoding import decode
from sublet.frontends.paddle.format.encoding import encode
from sublet.frontends.paddle.running.verify import Training, verify
from sublet.frontends.paddle.transpile import OWN, Asked, Report
from sublet.frontends.paddle.transpile import transpile as rewritten

__all__ = ["Training", "transpile", "verify"]

Names = Collection[Any]
"""Names of variables, or Paddle's variables."""


def transpile(
    program: Any,
    skip_opt_set: Names = (),
    print_log: bool = False,
    level: int | None = None,
    skip_grads: bool = True,
    *,
    policy: str = OWN,
    arena: bool = False,
    lasting: bool = False,
    keep: Names = (),
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    dims: Mapping[str, int] | None = None,
    max_trips: Mapping[str, int] | int | None = None,
) -> Any:
    """A program that computes the same and holds fewer bytes: bytes for bytes, a Program for a `paddle.static.Program`.

    The first five arguments are those of `fluid.memory_optimize`: what stays as it is, whether to say what was done,
    and the published level 0 or 1 (then `skip_grads` too); without a level it is Sublet's own policy. `arena` asks for
    the arena form, which needs FLAGS_new_executor_sequential_run=1 and is proven for that order; a `lasting` one stays
    from run to run. `keep` is what will be fetched beside losses, `shapes` and `dims` are extents that the program
    leaves open, `max_trips` how often loops run where the program does not say it. The program that is given stays as
    it is.
    Raises ModelError for what is no program or not in it, PlanError for a policy that is not there, PlanViolation if
    the checker refuses what Sublet's own policy made.
    """
    if level is not None:
        policy = f"level{level}"
    trips = {"": max_trips} if isinstance(max_trips, int) else dict(max_trips or {})
    kept = dict.fromkeys((*_names(skip_opt_set), *_names(keep)))
    made = rewritten(
        decode(_bytes(program), "the program"),
        Asked(policy, dims or {}, trips, tuple(kept), shapes or {}, skip_grads, arena, lasting),
    )
    if print_log:
        sys.stderr.write(f"{_told(made.report)}\n")
    raw = encode(made.program)
    return raw if isinstance(program, bytes) else type(program).parse_from_string(raw)


def _bytes(program: Any) -> bytes:
    if isinstance(program, bytes):
        return program
    desc: Any = getattr(program, "desc", None)
    if not hasattr(desc, "serialize_to_string") or not hasattr(program, "parse_from_string"):
        raise ModelError(
            f"{type(program).__name__} is no program that Paddle serialises: give bytes or a paddle.static.Program "
            "(in Paddle 3 build it with FLAGS_enable_pir_api=0)"
        )
    return bytes(desc.serialize_to_string())


def _names(names: Names) -> tuple[str, ...]:
    return tuple(name if isinstance(name, str) else str(name.name) for name in names)


def _told(report: Report) -> str:
    """One line: what is known of the bytes, and what was proven."""
    judged = report.proven and (report.arena is None or report.arena.proven)
    proven = "proven to compute the same" if judged else "NOT proven to compute the same"
    if report.before is None or report.after is None:
        return f"{report.policy}: {proven}; bytes are not known: {report.unknown_bytes}"
    was, now = report.before.collected.peak, report.after.collected.peak
    return f"{report.policy}: {was:,} -> {now:,} bytes at the peak, predicted; {proven}"
