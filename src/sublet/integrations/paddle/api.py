"""The memory optimisation transpiler for Paddle programs (`sublet.paddle`).

    import sublet
    small = sublet.paddle.transpile(program)          # formerly fluid.memory_optimize(program)

No Paddle is needed: a program is bytes, or an object with Paddle's own methods of serialisation.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sublet.analysis.liveness import live_in_out
from sublet.base.errors import ModelError, PlanError
from sublet.integrations.paddle.format.encoding import decode_program, encode_program
from sublet.integrations.paddle.peaks.control_flow import PaddleFlow, build_flow, point_title
from sublet.integrations.paddle.peaks.scopes import ScopedVariable
from sublet.integrations.paddle.running.verify import Training, verify
from sublet.integrations.paddle.transpile import (
    OWN_POLICY,
    TranspileReport,
    TranspileRequest,
    names_to_keep,
    with_missing_types,
)
from sublet.integrations.paddle.transpile import transpile as rewritten

__all__ = ["ControlFlowGraph", "Training", "transpile", "verify"]

Names = Collection[Any]
"""Variables: names, or objects with a `name` as in Paddle."""


class ControlFlowGraph:
    """The control flow graph of a program, with the interface of Paddle's design "Memory Optimization" [seed 004].

        graph = sublet.paddle.ControlFlowGraph(program)
        graph.build()
        graph.dataflow_analysis()
        graph.memory_optimization()
        small = graph.get_program()

    A node is a number. An operator is one node, an operator with a block several: `nodes` describes each. Persistable
    variables are live everywhere, and left out of all sets.

    nodes                     the block, operator and type of each node
    successors, predecessors  the nodes that may follow and precede a node, after `build`
    uses, defs                the variables that a node reads and writes, after `build`
    kills                     the variables whose content ends at a node, as an iteration's scope does, after `build`
    live_in, live_out         the variables live before and after a node, after `dataflow_analysis`
    """

    def __init__(self, program: Any, skip_opt_set: Names | None = None) -> None:
        """Keep the program; `skip_opt_set` are variables to leave unchanged, live at the end.

        Raises ModelError for an argument that is not a program.
        """
        self._program = program
        self._skip = tuple(_variable_names(skip_opt_set))
        self._decoded, _ = with_missing_types(decode_program(_serialize(program), "the program"))
        self._flow: PaddleFlow | None = None
        self.nodes: dict[int, str] = {}
        self.successors: dict[int, frozenset[int]] = {}
        self.predecessors: dict[int, frozenset[int]] = {}
        self.uses: dict[int, frozenset[str]] = {}
        self.defs: dict[int, frozenset[str]] = {}
        self.kills: dict[int, frozenset[str]] = {}
        self.live_in: dict[int, frozenset[str]] = {}
        self.live_out: dict[int, frozenset[str]] = {}

    def build(self) -> None:
        """Compute nodes, edges, uses, defs and kills. Raises ModelError for an unknown name in `skip_opt_set`."""
        program = self._decoded
        flow = build_flow(program, [ScopedVariable(0, name) for name in names_to_keep(program, self._skip)])
        self._flow = flow
        self._persistable = {
            place for place in flow.points[0].defs if program.blocks[place.block].vars[place.name].persistable
        }
        self.nodes = {index: point_title(program, point) for index, point in enumerate(flow.points)}
        self.successors = {index: frozenset(after) for index, after in enumerate(flow.successors)}
        predecessors: dict[int, set[int]] = {index: set() for index in self.nodes}
        for index, after in self.successors.items():
            for follower in after:
                predecessors[follower].add(index)
        self.predecessors = {index: frozenset(before) for index, before in predecessors.items()}
        self.uses = {index: self._names(point.uses) for index, point in enumerate(flow.points)}
        self.defs = {index: self._names(point.defs) for index, point in enumerate(flow.points)}
        self.kills = {index: self._names(point.kills) for index, point in enumerate(flow.points)}

    def dataflow_analysis(self) -> None:
        """Solve the dataflow equations for `live_in` and `live_out`. Raises PlanError before `build`."""
        if self._flow is None:
            raise PlanError("the graph has no nodes yet: call build() before dataflow_analysis()")
        for index, (before, after) in enumerate(live_in_out(self._flow)):
            self.live_in[index], self.live_out[index] = self._names(before), self._names(after)

    def memory_optimization(self, policy: str = OWN_POLICY, **options: Any) -> None:
        """Rewrite the program by a policy; "seed" is the design's own pool. `options` are those of `transpile`.

        Raises PlanError before `dataflow_analysis`, and the errors of `transpile`.
        """
        if not self.live_in:
            raise PlanError("liveness is unknown yet: call dataflow_analysis() before memory_optimization()")
        self._program = transpile(self._program, self._skip, policy=policy, **options)

    def get_program(self) -> Any:
        """Return the program, rewritten after `memory_optimization`: bytes for bytes, a Program for a Program."""
        return self._program

    def _names(self, variables: Iterable[ScopedVariable]) -> frozenset[str]:
        """Return the names of variables; a variable of an inner block has the block's number."""
        return frozenset(str(each) for each in variables if each not in self._persistable)


def transpile(
    program: Any,
    skip_opt_set: Names | None = None,
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

    skip_opt_set  variables to leave unchanged, by name or as Paddle's variables; None for no variables
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


def _variable_names(names: Names | None) -> tuple[str, ...]:
    """Return the names of variables; no names for None."""
    return tuple(name if isinstance(name, str) else str(name.name) for name in names or ())


def _describe_report(report: TranspileReport) -> str:
    """Return one line with the predicted peaks in bytes before and after, and the proof."""
    judged = report.is_proven and (report.arena is None or report.arena.is_proven)
    proven = f"proven to compute the same{report.proven_for}" if judged else "NOT proven to compute the same"
    if report.before is None or report.after is None:
        return f"{report.policy}: {proven}; bytes unknown: {report.unknown_bytes}"
    was, now = report.before.collected.peak, report.after.collected.peak
    return f"{report.policy}: {was:,} -> {now:,} bytes at the peak, predicted; {proven}"
