"""What all commands share: their errors and exit statuses, and how they speak.

Answers go to standard output, everything else to standard error; with `--json` standard output holds one
JSON object, be it `{"error": ..., "kind": ..., "exit_status": ...}`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from sublet.base.bytesize import human
from sublet.base.errors import CapacityError, PlanError, SubletError
from sublet.base.printable import printable
from sublet.cli.streams import READER_LEFT, discard_answers
from sublet.ir.model import Model as Source
from sublet.plan.advised import Advice
from sublet.plan.verdict import Outcome, Verdict
from sublet.planning.advice.ideas import Idea
from sublet.planning.advice.tried import Trying
from sublet.planning.placing import Progress

P = ParamSpec("P")
NEWLINE = "\n"
errors = Console(stderr=True, highlight=False)

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
            discard_answers()
            raise typer.Exit(READER_LEFT) from None
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
def budget_progress() -> Iterator[Callable[[int], None]]:
    """Tell each budget that is searched for on a terminal; say nothing elsewhere."""
    if not errors.is_terminal:
        yield lambda budget: None
        return
    with errors.status("budget") as status:
        yield lambda budget: status.update(f"computing again what makes it fit {human(budget)}")


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
