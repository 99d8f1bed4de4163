"""The memory optimisation transpiler for Paddle programs (`sublet.paddle`).

    import sublet
    small = sublet.paddle.transpile(program)          # formerly fluid.memory_optimize(program)

No Paddle is needed: a program is bytes, or an object with Paddle's own methods of serialisation.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any

from sublet.base.errors import ModelError
from sublet.integrations.paddle.format.decoding import decode_program
from sublet.integrations.paddle.format.encoding import encode_program
from sublet.integrations.paddle.running.verify import Training, verify
from sublet.integrations.paddle.transpile import OWN_POLICY, TranspileReport, TranspileRequest
from sublet.integrations.paddle.transpile import transpile as rewritten

__all__ = ["Training", "transpile", "verify"]

Names = Collection[Any]
"""Variables: names, or objects with a `name` as in Paddle."""


def transpile(
    program: Any,
    skip_opt_set: Names = (),
    print_log: bool = False,
    level: int | None = None,
    skip_grads: bool = True,
    *,
    policy: str = OWN_POLICY,
    arena: bool = False,
    lasting: bool = False,
    keep: Names = (),
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    dims: Mapping[str, int] | None = None,
    max_trips: Mapping[str, int] | int | None = None,
) -> Any:
    """Return an equivalent program with less memory: bytes for bytes, a Program for a `paddle.static.Program`.

    skip_opt_set  variables to leave unchanged, by name or as Paddle's variables
    print_log     print one line with the result on standard error
    level         the published level 0 or 1; without a level, `policy` decides
    skip_grads    for the published levels: gradients of parameters keep their names
    policy        the policy of the rewriting, by default Sublet's own
    arena         return the arena form: views of a single tensor instead of shared names. The form needs
                  FLAGS_new_executor_sequential_run=1, and is proven for sequential order.
    lasting       keep the arena from run to run
    keep          variables to be fetched, beside losses
    shapes        whole shapes of variables with open extents
    dims          single extents left open by the program, by "variable.axis"
    max_trips     the maximum trip count of every loop, or of single loops by the name of the condition

    The first five parameters are those of `fluid.memory_optimize`. The argument `program` is not changed.

    Raises ModelError for an argument that is not a program and for unknown names; PlanError for an unknown policy and
    for contradictory options; PlanViolation if the checker refuses a program rewritten by Sublet's own policy.
    """
    if level is not None:
        policy = f"level{level}"
    trips = {"": max_trips} if isinstance(max_trips, int) else dict(max_trips or {})
    kept = dict.fromkeys((*_variable_names(skip_opt_set), *_variable_names(keep)))
    transpiled = rewritten(
        decode_program(_serialize(program), "the program"),
        TranspileRequest(policy, dims or {}, trips, tuple(kept), shapes or {}, skip_grads, arena, lasting),
    )
    if print_log:
        sys.stderr.write(f"{_describe_report(transpiled.report)}\n")
    raw = encode_program(transpiled.program)
    return raw if isinstance(program, bytes) else type(program).parse_from_string(raw)


def _serialize(program: Any) -> bytes:
    """Return the serialised program. Raises ModelError for an object without Paddle's methods of serialisation."""
    if isinstance(program, bytes):
        return program
    desc: Any = getattr(program, "desc", None)
    if not hasattr(desc, "serialize_to_string") or not hasattr(program, "parse_from_string"):
        raise ModelError(
            f"{type(program).__name__} is not a serialisable Paddle program: pass bytes or a paddle.static.Program "
            "(in Paddle 3 build it with FLAGS_enable_pir_api=0)"
        )
    return bytes(desc.serialize_to_string())


def _variable_names(names: Names) -> tuple[str, ...]:
    """Return the names of variables."""
    return tuple(name if isinstance(name, str) else str(name.name) for name in names)


def _describe_report(report: TranspileReport) -> str:
    """Return one line with the predicted peaks in bytes before and after, and the proof."""
    judged = report.is_proven and (report.arena is None or report.arena.is_proven)
    proven = "proven to compute the same" if judged else "NOT proven to compute the same"
    if report.before is None or report.after is None:
        return f"{report.policy}: {proven}; bytes unknown: {report.unknown_bytes}"
    was, now = report.before.collected.peak, report.after.collected.peak
    return f"{report.policy}: {was:,} -> {now:,} bytes at the peak, predicted; {proven}"
