"""The command `sublet transpile`: rewrite a Paddle program to use less memory, and report the savings and the proof."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sublet.base.errors import PlanError
from sublet.base.escape import printable
from sublet.base.files import write
from sublet.cli import options
from sublet.cli.console import DOES_NOT_FIT, UNKNOWN, answer_console, print_json, refuse_overwriting, reports_errors
from sublet.cli.options import parse_dims, parse_extents, parse_max_trips
from sublet.cli.transpile_report import print_transpile_report, reports_of_policies, transpile_json
from sublet.frontends.paddle.format.decoding import decode_program
from sublet.frontends.paddle.format.encoding import encode_program
from sublet.frontends.paddle.lives.live_sets import live_lines
from sublet.frontends.paddle.lives.scopes import ScopedVariable
from sublet.frontends.paddle.transpile import TranspileRequest, names_to_keep, transpile


class Policy(StrEnum):
    """The names of the rewriting policies, as in `POLICIES`."""

    seed = "seed"
    level0 = "level0"
    level1 = "level1"
    sublet = "sublet"


Keep = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A variable to fetch after a run; losses are kept anyway. Repeat for more."),
]


@reports_errors
def transpile_(
    program: Annotated[
        Path, typer.Argument(help="A ProgramDesc of Paddle, for training or inference.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option("--out", help="Write the rewritten program.")] = None,
    policy: Annotated[Policy, typer.Option(help="The rewriting policy: Sublet's own, or a baseline.")] = Policy.sublet,
    in_arena: Annotated[bool, typer.Option("--arena", help="Place tensors in one arena, at planned offsets.")] = False,
    lasting: Annotated[bool, typer.Option("--lasting", help="With --arena: keep the arena from run to run.")] = False,
    keep: Keep = None,
    dim: options.Dim = None,
    shape: options.Shape = None,
    max_trips: options.MaxTrips = None,
    report: Annotated[bool, typer.Option("--report", help="Show all policies side by side.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Print uses, definitions and live sets, and exit.")] = False,
    as_json_: options.Json = False,
) -> None:
    """Rewrite a Paddle program to need less memory in the ordinary executor; prove the results unchanged.

    Exit status: 0 proven, or not judged (the report says why); 1 the program of a baseline policy computes other
    results; 2 bad input; 3 the arena form is not proven.
    """
    if live and (out is not None or report or as_json_):
        raise PlanError("--live prints the live sets of the program and rewrites nothing: drop the other options")
    refuse_overwriting(program, out)
    read = decode_program(program.read_bytes(), str(program))
    if live:
        for line in live_lines(read, [ScopedVariable(0, name) for name in names_to_keep(read, keep or ())]):
            answer_console().print(printable(line), markup=False)
        return
    dims = parse_extents(program, shape, parse_dims(dim))
    request = TranspileRequest(
        policy.value, dims, parse_max_trips(max_trips), tuple(keep or ()), arena=in_arena, lasting=lasting
    )
    transpiled = transpile(read, request)
    if out is not None:
        write(out, encode_program(transpiled.program))
    policy_reports = reports_of_policies(read, request, transpiled) if report else ()
    if as_json_:
        print_json({"program": str(program), **transpile_json(transpiled.report, policy_reports)})
    else:
        print_transpile_report(out, transpiled.report, policy_reports)
    if transpiled.report.findings:
        raise typer.Exit(DOES_NOT_FIT)
    if transpiled.report.arena is not None and not transpiled.report.arena.is_proven:
        raise typer.Exit(UNKNOWN)
