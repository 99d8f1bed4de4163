"""Whether a rewritten program computes what the original does: both are run with terms for numbers, and compared.

It knows nothing of policies: it reads two programs, and of facts only which ops may write over what they read. What
is proven is said in `Judgement`: equal bits of all that is fetched and all that persists, for the numbers of rounds
and the ways through branches that were tried; of conditions that are numbers in the program, the one way they go.
Of runs that Paddle does not end, as where an operator reads what nobody wrote, it is only said that nothing that is
fetched or persists is computed of memory that came there by the rewriting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sublet.base.errors import Finding
from sublet.frontends.paddle.checking.control import run_block
from sublet.frontends.paddle.checking.machine import Known, Run, Sizes, Step, content, inplace_of
from sublet.frontends.paddle.checking.named import VIEW, mistyped, unnamed
from sublet.frontends.paddle.checking.terms import Choices, Term, Terms
from sublet.frontends.paddle.format.program import TENSOR, Op, Program

TRIPS = (0, 1, 2, 3)
MOST_WAYS = 64
GIVEN = Op("given", {}, {}, {})


@dataclass(frozen=True)
class Judgement:
    """What a comparison found.

    findings  what is wrong, each with block, op and name; nothing when the programs are equal
    trips     the numbers of rounds that loops were run for whose condition is no known number
    every_way whether every combination of branches was tried for each of them
    in_order  whether it holds only where operators run in the order they are written: views in one tensor are nothing
              that Paddle orders by (`FLAGS_new_executor_sequential_run=1`)
    """

    findings: tuple[Finding, ...]
    trips: tuple[int, ...]
    every_way: bool
    in_order: bool = False

    @property
    def equal(self) -> bool:
        return not self.findings


def judge(
    original: Program,
    rewritten: Program,
    sizes: Sizes,
    *,
    keep: Iterable[str] = (),
    trips: Iterable[int] = TRIPS,
    most_ways: int = MOST_WAYS,
) -> Judgement:
    """Compare two programs; `keep` names what is fetched, `sizes` are those of the original."""
    findings = dict.fromkeys((*unnamed(original, rewritten), *mistyped(original, rewritten)))
    kept, usual, every_way = frozenset(keep), inplace_of(original), True
    tried: list[int] = []
    for count in trips:
        terms, asked = Terms(), False
        choices = Choices(terms)
        for _ in choices.ways(most_ways):
            known = Known()
            first = Run(original, terms, choices, count, kept, usual, known, sizes)
            second = Run(rewritten, terms, choices, count, kept, usual, known)
            findings.update(dict.fromkeys(_differences(first, second)))
            asked |= first.asked or second.asked
        every_way &= choices.all_tried
        if not asked:
            break  # every loop knows how often it runs
        tried.append(count)
    in_order = any(op.type == VIEW for block in rewritten.blocks for op in block.ops)
    return Judgement(tuple(findings), tuple(tried), every_way, in_order)


def _differences(first: Run, second: Run) -> Iterator[Finding]:
    """What two runs find wrong, and what they end with that is not the same."""
    ends = [_run(first)]
    second.known.observed, second.known.absent = first.observed, first.absent
    ends.append(_run(second))
    yield from (*first.findings, *second.findings)
    for name, term in ends[0].items():
        if ends[1].get(name) != term:
            yield Finding("differs", f"%{name}", "ends as another value than in the original program")
    if first.observed != second.observed:
        yield Finding("differs", "the program", "fetches, or decides by, another value than the original program")


def _run(run: Run) -> dict[str, Term]:
    """Run a program from a state in which all that persists, and all that is fed, is there."""
    block = run.program.blocks[0]
    written = {name for op in block.ops for name in op.writes}
    for name, var in block.vars.items():
        if var.kind == TENSOR and (var.persistable or name not in written):
            Step(run, block, -1, GIVEN, run.top).write(name, run.terms.of("given", name))
    run_block(run, 0, run.top, frozenset())
    lasting = [name for name, var in block.vars.items() if var.persistable or name in run.keep]
    return {name: _content(run, name) for name in lasting}


def _content(run: Run, name: str) -> Term:
    """What a name holds at the end."""
    term = content(run.terms, run.top.find(name))
    return run.terms.lost(name) if term is None else term
