"""The command line: `sublet plan | check | show | pack`.

Exit status: 0 it fits (or the plan is right), 1 it does not, 2 the input is bad. Answers go to standard
output, everything else to standard error; with `--json` standard output holds one JSON object.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.markup import escape

from sublet.budget import verdict
from sublet.bytesize import human, parse_bytes
from sublet.checker import check as replay
from sublet.compile import Options, Progress, plan_memory
from sublet.errors import ModelError, PlanError, SubletError
from sublet.frontends.model import read_model
from sublet.packing import STRATEGIES, Report, pack
from sublet.packing.csv_format import write_csv
from sublet.packing.files import read_problem
from sublet.plan import MemoryPlan
from sublet.plan_file import fingerprint, load, save
from sublet.printable import printable
from sublet.report import as_json
from sublet.viz.page import write_html
from sublet.viz.png import write_png
from sublet.viz.rectangles import Picture, packing_rectangles, rectangles
from sublet.viz.summary import summary, verdict_line
from sublet.viz.terminal import memory_map

app = typer.Typer(
    name="sublet",
    help="The smallest memory a neural network can run in: planned, proven, shown.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
P = ParamSpec("P")
NEWLINE = "\n"
errors = Console(stderr=True, highlight=False)


class Where(StrEnum):
    arena = "arena"
    bound = "bound"


Model = Annotated[
    Path, typer.Argument(help="A model: .onnx, or the text form of a graph (.sublet).", show_default=False)
]
Dim = Annotated[
    list[str] | None, typer.Option("--dim", metavar="NAME=V", help="Bind a symbolic dimension; repeat for more.")
]
Strategy = Annotated[str, typer.Option(help=f"auto, or one of {', '.join(STRATEGIES)}.", metavar="S")]
Html = Annotated[Path | None, typer.Option("--html", help="Write the picture as one self-contained page.")]
Png = Annotated[Path | None, typer.Option("--png", help="Write the picture as PNG or SVG (extra: png).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")]
Timeout = Annotated[float | None, typer.Option(help="Stop searching after this many seconds.", metavar="SECONDS")]


Effort = Annotated[int | None, typer.Option(help="Limit the search to this many steps.", min=1, metavar="STEPS")]


def answered(command: Callable[P, None]) -> Callable[P, None]:
    """A mistake of the user's is one message on standard error and exit status 2, never a traceback."""

    @wraps(command)
    def guarded(*arguments: P.args, **options: P.kwargs) -> None:
        try:
            command(*arguments, **options)
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read the output has seen enough. Point it elsewhere, or the interpreter complains at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except (SubletError, OSError) as error:
            errors.print(f"[red]error:[/red] {escape(printable(str(error), keep=NEWLINE))}")
        except KeyboardInterrupt:
            errors.print("interrupted")
            raise typer.Exit(130) from None
        except RecursionError:
            errors.print("[red]error:[/red] the model nests graphs too deeply; about 100 levels are supported")
        else:
            return
        raise typer.Exit(2)

    return guarded


@app.command()
@answered
def plan(
    model: Model,
    dim: Dim = None,
    strategy: Strategy = "auto",
    align: Annotated[int, typer.Option(help="Every tensor's offset is a multiple of this many bytes.")] = 64,
    budget: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Exit 1 if more is needed: 256KiB, 1.5MB.")
    ] = None,
    io: Annotated[Where, typer.Option(help="Where inputs and outputs lie.")] = Where.arena,
    weights: Annotated[Where, typer.Option(help="Where weights lie.")] = Where.bound,
    streams: Annotated[int, typer.Option(help="How many streams may run at the same time.")] = 1,
    timeout: Timeout = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan as JSON.")] = None,
    html: Html = None,
    png: Png = None,
    as_json_: Json = False,
) -> None:
    """Plan the memory of a model, prove the plan, and show it."""
    _refuse_overwriting(model, out, html, png)
    limit = None if budget is None else parse_bytes(budget)
    started = perf_counter()
    imported = read_model(model, _dims(dim))
    options = Options(strategy, align, io.value, weights.value, streams, timeout)
    with _progress() as progress:
        made = plan_memory(imported.graph, options, dims=imported.dims, progress=progress)
    seconds = perf_counter() - started
    if out is not None:
        save(made, out)
    picture = rectangles(made)
    _draw(picture, html, png)
    decision = None if limit is None else verdict(made, limit)
    if as_json_:
        _print_json(as_json(made, seconds, decision))
    else:
        _show(made, picture)
        if decision is not None:
            _out().print(verdict_line(decision, made))
    if decision is not None and not decision.fits:
        raise typer.Exit(1)


@app.command()
@answered
def check(
    model: Model,
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan written by `sublet plan --out`.")],
    as_json_: Json = False,
) -> None:
    """Replay a plan against its model, byte by byte, and report every violation."""
    made = load(plan_path)
    imported = read_model(model, dict(made.dims))
    if fingerprint(imported.graph, made.schedule) != made.fingerprint:
        raise PlanError(f"{plan_path} is not a plan of {model}: the fingerprints differ. Plan the model again.")
    found = replay(imported.graph, made.schedule, made)
    if as_json_:
        _print_json({"valid": not found, "violations": [str(finding) for finding in found]})
    elif found:
        for finding in found:
            _out().print(f"[red]violation[/red] {escape(printable(str(finding)))}")
    else:
        _out().print(f"[green]valid[/green]: {len(made.placements)} tensors in {human(made.arena_bytes)}")
    if found:
        raise typer.Exit(1)


@app.command()
@answered
def show(
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan written by `sublet plan --out`.")],
    html: Html = None,
    png: Png = None,
    as_json_: Json = False,
) -> None:
    """Show a plan from its file."""
    _refuse_overwriting(plan_path, html, png)
    made = load(plan_path)
    picture = rectangles(made)
    _draw(picture, html, png)
    if as_json_:
        _print_json(as_json(made, None, None))
    else:
        _show(made, picture)


@app.command(name="pack")
@answered
def pack_(
    problem: Annotated[Path, typer.Argument(help="MiniMalloc's CSV, or a partial order as JSON.", show_default=False)],
    strategy: Strategy = "auto",
    capacity: Annotated[str | None, typer.Option(metavar="BYTES", help="Exit 1 if more is needed.")] = None,
    timeout: Timeout = None,
    effort: Effort = None,
    seed: Annotated[int, typer.Option(help="Of the search's randomness.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write the problem with its offsets as CSV.")] = None,
    html: Html = None,
    png: Png = None,
    as_json_: Json = False,
) -> None:
    """Pack the buffers of a problem into one arena."""
    _refuse_overwriting(problem, out, html, png)
    limit = None if capacity is None else parse_bytes(capacity)
    question = read_problem(problem)
    with _progress() as progress:
        report = pack(question, strategy, timeout, progress, capacity=limit, effort=effort, seed=seed)
    if out is not None:
        write_csv(question, report.packing, out)
    picture = packing_rectangles(question, report.packing, report.bound.bytes, report.bound.kind)
    _draw(picture, html, png)
    fits = limit is None or report.packing.arena_bytes <= limit
    if as_json_:
        _print_json(_packing_json(report, limit, fits))
    else:
        _show_packing(report, picture)
        if not fits:
            _out().print(f"[red]Does not fit the capacity of {human(limit or 0)}.[/red]")
    if not fits:
        raise typer.Exit(1)


def main() -> None:
    """Run the command line."""
    app()


def _refuse_overwriting(source: Path, *targets: Path | None) -> None:
    """No output may replace the input, or another output. Raises PlanError naming both."""
    taken = {source.resolve(): "the input"}
    for target in targets:
        if target is None or (target.exists() and not target.is_file()):
            continue
        if target.resolve() in taken:
            raise PlanError(f"{target} would overwrite {taken[target.resolve()]}: choose another name")
        taken[target.resolve()] = f"another output, {target}"


def _dims(pairs: list[str] | None) -> dict[str, int]:
    """`["batch=1"]` as a dict. Raises ModelError for anything else."""
    bound: dict[str, int] = {}
    for pair in pairs or ():
        name, equals, text = pair.rpartition("=")
        if not equals or not name or not re.fullmatch(r"[+-]?[0-9]{1,20}", text.strip()):
            raise ModelError(f"--dim {pair[:80]}: write NAME=INTEGER, for instance --dim batch=1")
        if name in bound:
            raise ModelError(f"--dim {name} is given twice")
        bound[name] = int(text)
    return bound


def _out() -> Console:
    return Console(highlight=False)


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """Tell each strategy tried on a terminal; say nothing elsewhere."""
    if not errors.is_terminal:
        yield None
        return
    with errors.status("packing") as status:
        yield lambda strategy, nbytes: status.update(f"packing: {strategy} needs {human(nbytes)}")


def _draw(picture: Picture, html: Path | None, png: Path | None) -> None:
    if html is not None:
        write_html(picture, html)
    if png is not None:
        write_png(picture, png)


def _show(made: MemoryPlan, picture: Picture) -> None:
    _out().print(summary(made))
    _print_map(picture)


def _print_map(picture: Picture) -> None:
    console = _out()
    if picture.arena_bytes:
        console.print()
        console.print(memory_map(picture, width=min(console.width, 120), height=16))


def _show_packing(report: Report, picture: Picture) -> None:
    packing, bound = report.packing, report.bound
    console = _out()
    console.print(f"arena        {packing.arena_bytes:,} bytes ({human(packing.arena_bytes)}) by {packing.strategy}")
    console.print(f"lower bound  {bound.bytes:,} bytes ({bound.kind}), gap {report.gap:.2%}")
    for name, nbytes, seconds in report.tried:
        console.print(f"  {name:<32}{nbytes:>16,} bytes {seconds:8.3f} s", style="dim")
    if report.stopped:
        console.print(f"stopped by {report.stopped}: the best so far", style="yellow")
    _print_map(picture)


def _packing_json(report: Report, limit: int | None, fits: bool) -> dict[str, Any]:
    return {
        "arena_bytes": report.packing.arena_bytes,
        "lower_bound_bytes": report.bound.bytes,
        "bound": report.bound.kind,
        "strategy": report.packing.strategy,
        "seconds": report.seconds,
        "capacity_bytes": limit,
        "fits": fits,
        "gap": report.gap,
        "steps": report.steps,
        "stopped": report.stopped,
        "tried": [{"strategy": name, "arena_bytes": size, "seconds": took} for name, size, took in report.tried],
        "offsets": list(report.packing.offsets),
    }


def _print_json(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
