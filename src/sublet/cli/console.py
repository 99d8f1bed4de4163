"""What all commands share: their options, their errors and exit statuses, and how they speak.

Answers go to standard output, everything else to standard error; with `--json` standard output holds one
JSON object, be it `{"error": ..., "kind": ..., "exit_status": ...}`.
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
from typing import Annotated, Any, ParamSpec, get_args

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from sublet.api.sources import Optimize
from sublet.base.bytesize import human, parse_bytes
from sublet.base.printable import printable
from sublet.errors import CapacityError, ModelError, PlanError, SubletError
from sublet.ir.model import Model as Source
from sublet.packing import STRATEGIES
from sublet.plan import MemoryPlan
from sublet.plan.advised import Advice
from sublet.plan.verdict import Outcome, Verdict, verdict
from sublet.planning.advice.ideas import Idea
from sublet.planning.advice.tried import Trying
from sublet.planning.pipeline import Progress

P = ParamSpec("P")
NEWLINE = "\n"
errors = Console(stderr=True, highlight=False)

Model = Annotated[
    Path, typer.Argument(help="A model: .onnx, or the text form of a graph (.sublet).", show_default=False)
]
Dim = Annotated[
    list[str] | None, typer.Option("--dim", metavar="NAME=V", help="Bind a symbolic dimension; repeat for more.")
]
MaxTrips = Annotated[
    list[str] | None,
    typer.Option(
        "--max-trips",
        metavar="[LOOP=]N",
        help="Loops make at most N rounds, or one of them does: what they stack is planned. Repeat for more.",
    ),
]
Strategy = Annotated[str, typer.Option(help=f"auto, or one of {', '.join(STRATEGIES)}.", metavar="S")]
Html = Annotated[Path | None, typer.Option("--html", help="Write the picture as one self-contained page.")]
Png = Annotated[Path | None, typer.Option("--png", help="Write the picture as PNG or SVG (extra: png).")]
RegionTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--region",
        metavar="NAME=BYTES[@COST]",
        help="A memory, such as sram=512KiB@1, with what accessing a byte costs (if left out: 1, 10, ...); repeat.",
    ),
]
Timeout = Annotated[float | None, typer.Option(help="Stop searching after this many seconds.", metavar="SECONDS")]
Optimizer = Annotated[
    str, typer.Option("--optimize", metavar="O", help=f"Who rewrites a model first: {', '.join(get_args(Optimize))}.")
]
Budget = Annotated[
    str | None,
    typer.Option(metavar="BYTES", help="Exit 1 if more is needed, 3 if nobody can tell: 256K, 1.5MB."),
]
MaxDim = Annotated[
    list[str] | None,
    typer.Option(
        "--max-dim",
        metavar="[VALUE=]N",
        help="With --budget: no unknown extent of the values outside the plan is above N. Repeat for more.",
    ),
]
Assume = Annotated[
    list[str] | None,
    typer.Option(
        "--assume",
        metavar="NAME=SHAPE",
        help="Take a value of unknown shape to be f32[1,8], or [1,8] if only the shape is unknown. Repeat for more.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")]


FITS, DOES_NOT_FIT, BAD_INPUT, UNKNOWN = 0, 1, 2, 3
"""Exit statuses: it fits or is right; it does not or is wrong; the input is bad; too little is known to tell."""

STATUS = {Outcome.FITS: FITS, Outcome.DOES_NOT_FIT: DOES_NOT_FIT, Outcome.UNKNOWN: UNKNOWN}
"""By verdict."""

WIDE = 1 << 16
"""Columns of an answer that no terminal shows: no name is broken into lines."""


def answered(command: Callable[P, None]) -> Callable[P, None]:
    """A mistake of the user's is one message on standard error and exit status 2, never a traceback."""

    @wraps(command)
    def guarded(*arguments: P.args, **options: P.kwargs) -> None:
        in_json = bool(options.get("as_json_"))
        try:
            try:
                command(*arguments, **options)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read the output has seen enough. Point it elsewhere, or the interpreter complains at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except (SubletError, OSError) as error:
            status = DOES_NOT_FIT if isinstance(error, CapacityError) else BAD_INPUT
            tell(error, _with_notes(error, str(error)), status, in_json=in_json)
            raise typer.Exit(status) from None
        except KeyboardInterrupt as error:
            errors.print(escape(printable(_with_notes(error, "interrupted"), keep=NEWLINE)))
            raise typer.Exit(130) from None
        except MemoryError as error:
            tell(error, f"not enough memory: {error}", in_json=in_json)
        except RecursionError as error:
            tell(error, "the model nests graphs too deeply; about 100 levels are supported", in_json=in_json)
        else:
            return
        raise typer.Exit(BAD_INPUT)

    return guarded


def tell(error: BaseException, message: str, status: int = BAD_INPUT, *, in_json: bool) -> None:
    """One message on standard error, and on standard output too where a program waits for JSON."""
    if in_json:
        print_json({"error": message, "kind": type(error).__name__, "exit_status": status})
    text = escape(printable(message, keep=NEWLINE))
    errors.print(f"[red]error:[/red] {text}", soft_wrap=not errors.is_terminal)


def _with_notes(error: BaseException, said: str) -> str:
    return NEWLINE.join([said, *getattr(error, "__notes__", ())])


def refuse_overwriting(sources: Path | list[Path], *targets: Path | None) -> None:
    """No output may replace an input, or another output. Raises PlanError naming both."""
    taken = {source.resolve(): "the input" for source in ([sources] if isinstance(sources, Path) else sources)}
    for target in targets:
        if target is None or (target.exists() and not target.is_file()):
            continue
        if target.resolve() in taken:
            raise PlanError(f"{target} would overwrite {taken[target.resolve()]}: choose another name")
        taken[target.resolve()] = f"another output, {target}"


def bound_dims(pairs: list[str] | None) -> dict[str, int]:
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


def bound_extents(texts: list[str] | None) -> dict[str, int]:
    """`["128", "value=64"]` as a dict; "" stands for every value. Raises ModelError for anything else."""
    return _maxima(texts, "--max-dim", "VALUE", "value outside the plan")


def told_shapes(texts: list[str] | None) -> dict[str, str]:
    """`["a=f32[1,8]"]` as a dict. Raises ModelError for anything else."""
    told: dict[str, str] = {}
    for text in texts or ():
        name, equals, shape = text.rpartition("=")
        if not equals or not name or not shape:
            raise ModelError(f"--assume {text[:80]}: write NAME=SHAPE, for instance --assume a=f32[1,8]")
        if name in told:
            raise ModelError(f"--assume {name} is given twice")
        told[name] = shape
    return told


def bound_trips(texts: list[str] | None) -> dict[str, int]:
    """`["8", "loop=9"]` as a dict; "" stands for every loop. Raises ModelError for anything else."""
    return _maxima(texts, "--max-trips", "LOOP", "loop")


def _maxima(texts: list[str] | None, option: str, named: str, every: str) -> dict[str, int]:
    bound: dict[str, int] = {}
    for text in texts or ():
        name, equals, count = text.rpartition("=")
        if not re.fullmatch(r"[0-9]{1,18}", count.strip()) or (equals and not name):
            raise ModelError(f"{option} {text[:80]}: write N or {named}=N, for instance {option} 100")
        if name in bound:
            raise ModelError(f"{option} {name or f'for every {every}'} is given twice")
        bound[name] = int(count)
    return bound


class Order(StrEnum):
    """In which order the nodes of a model run."""

    given = "given"
    less = "less"


Orders = Annotated[Order, typer.Option("--order", help="The model's own order, or one that needs less memory.")]


class Question:
    """What a plan is held against: `--budget`, and what `--max-dim` says of values outside the plan."""

    def __init__(self, budget: str | None, max_dim: list[str] | None) -> None:
        self.budget = None if budget is None else parse_bytes(budget)
        self.largest = bound_extents(max_dim)
        if self.largest and self.budget is None:
            raise PlanError("--max-dim bounds what a budget is held against: add --budget BYTES, or drop it")

    def answer(self, plan: MemoryPlan) -> Verdict | None:
        """The verdict; None when nothing was asked."""
        return None if self.budget is None else verdict(plan, self.budget, self.largest)


def leave(decision: Verdict | None) -> None:
    """End with the exit status of a verdict."""
    if decision is not None:
        raise typer.Exit(STATUS[decision.outcome])


class _Answers(Console):
    """A console whose reader may leave early: that is no answer, and must not end with the status of one."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def answers() -> Console:
    """Where answers go. Only a terminal breaks lines."""
    console = _Answers(highlight=False)
    return console if console.is_terminal else _Answers(highlight=False, width=WIDE)


def warned(source: Source) -> dict[str, Any]:
    """What the reader of a model has to tell, for programs."""
    return {"remark": source.remark, "warnings": [str(finding) for finding in source.warnings]}


def print_warnings(source: Source) -> None:
    """What the reader of a model warns of, for people."""
    for finding in source.warnings:
        answers().print(Text(f"warning: {printable(str(finding))}", "yellow"))


def picture_width() -> int:
    """Columns of a picture: of the terminal, or of the usual one where there is none."""
    return min(Console().width, 120)


@contextmanager
def packing_progress() -> Iterator[Progress | None]:
    """Tell each strategy tried on a terminal; say nothing elsewhere."""
    if not errors.is_terminal:
        yield None
        return
    with errors.status("packing") as status:
        yield lambda strategy, nbytes: status.update(f"packing: {strategy} needs {human(nbytes)}")


@contextmanager
def advice_progress() -> Iterator[Trying | None]:
    """Tell each change tried on a terminal, and the best so far; say nothing elsewhere."""
    if not errors.is_terminal:
        yield None
        return
    with errors.status("advice") as status:

        def trying(idea: Idea, found: tuple[Advice, ...]) -> None:
            best = min((each.arena_bytes for each in found), default=None)
            so_far = "" if best is None else f", the best so far is {human(best)}"
            status.update(escape(printable(f"trying {idea.what}{so_far} (Ctrl-C keeps what was found)")))

        yield trying


def print_json(content: dict[str, Any]) -> None:
    """One JSON object on standard output."""
    sys.stdout.write(json.dumps(content, indent=1) + "\n")
