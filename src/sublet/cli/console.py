"""Shared parts of all commands: errors, exit statuses and consoles.

Results go to standard output, all else to standard error. With `--json`, standard output holds exactly one JSON object,
for an error `{"error": ..., "kind": ..., "exit_status": ...}`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from sublet.analysis.options import Progress
from sublet.base.errors import CapacityError, PlanError, SubletError
from sublet.base.formatting import human, printable
from sublet.ir.model import Model as Source
from sublet.plan import MemoryPlan
from sublet.plan.statistics import Growth
from sublet.plan.verdict import Advice, BudgetOutcome, Verdict
from sublet.planning.advice import AdviceCandidate, OnCandidate

LOG = logging.getLogger(__name__)

# Repair of the standard streams if the caller closed a stream, or the reader of the output leaves early.

READER_LEFT = 141
"""Exit status if the reader closed the pipe: the status in a shell of a process ended by SIGPIPE (128 + 13)."""


def open_missing_streams() -> None:
    """Open the null device for each standard stream closed by the caller (`>&-`).

    An output to a closed stream is discarded, as with `>/dev/null`, and the exit status stays that of the command.
    Without the null device, the next file opened by the process would get the descriptor, and would receive the output.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor: the missing one
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open until the end


def discard_answers() -> None:
    """Send the rest of the output to the null device: the interpreter fails at exit if a stream cannot be flushed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)


class FirstLine:
    """A stream of text that passes on the first line with content, and discards the rest."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = self._ended = False

    def write(self, text: str) -> int:
        """Write the part of the text within the first line; return the length of the text."""
        line, end, _ = (text if self._begun else text.lstrip("\n")).partition("\n")
        if not self._ended:
            self._stream.write(line + end)
        self._begun, self._ended = self._begun or bool(line), self._ended or bool(end)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def print_stages() -> None:
    """Print the stages of planning on standard error, each with the milliseconds since the start."""
    handler, log = logging.StreamHandler(), logging.getLogger("sublet")
    handler.setFormatter(logging.Formatter("%(relativeCreated)7.0f ms  %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)


NEWLINE = "\n"
error_console = Console(stderr=True, highlight=False)

FITS, DOES_NOT_FIT, BAD_INPUT, UNKNOWN = 0, 1, 2, 3
"""Exit statuses: fits or right; does not fit or wrong; bad input; unknown."""

EXIT_STATUS = {BudgetOutcome.FITS: FITS, BudgetOutcome.DOES_NOT_FIT: DOES_NOT_FIT, BudgetOutcome.UNKNOWN: UNKNOWN}
"""The exit status of each verdict."""

PIPE_COLUMNS = 1 << 16
"""Columns of an output to a file or a pipe: wide enough to keep every name on one line."""


@contextmanager
def reporting_errors(*, in_json: bool) -> Iterator[None]:
    """Report a user's mistake as one message on standard error, without a traceback, and end the command.

    Exit status: 1 for a CapacityError; 2 for another SubletError, an OSError, or too little memory or stack; 130 for
    Ctrl-C; 141 if the reader closed the pipe.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        discard_answers()
        raise typer.Exit(READER_LEFT) from None
    except (SubletError, OSError) as error:
        status = DOES_NOT_FIT if isinstance(error, CapacityError) else BAD_INPUT
        print_error(error, _with_notes(error, str(error)), status, in_json=in_json)
        raise typer.Exit(status) from None
    except KeyboardInterrupt as error:
        error_console.print(escape(printable(_with_notes(error, "interrupted"), keep=NEWLINE)))
        raise typer.Exit(130) from None
    except MemoryError as error:
        print_error(error, f"not enough memory: {error}", in_json=in_json)
        raise typer.Exit(BAD_INPUT) from None
    except RecursionError as error:
        print_error(error, "the model nests graphs too deeply; about 100 levels are supported", in_json=in_json)
        raise typer.Exit(BAD_INPUT) from None


def print_error(error: BaseException, message: str, status: int = BAD_INPUT, *, in_json: bool) -> None:
    """Print an error message on standard error, and as JSON on standard output too if `in_json`."""
    if in_json:
        print_json({"error": message, "kind": type(error).__name__, "exit_status": status})
    text = escape(printable(message, keep=NEWLINE))
    error_console.print(f"[red]error:[/red] {text}", soft_wrap=not error_console.is_terminal)


def _with_notes(error: BaseException, said: str) -> str:
    return NEWLINE.join([said, *getattr(error, "__notes__", ())])


def refuse_overwriting(sources: Path | list[Path], *targets: Path | None) -> None:
    """Raise PlanError, naming both files, if an output file would replace an input file or another output file."""
    taken = {source.resolve(): "the input" for source in ([sources] if isinstance(sources, Path) else sources)}
    for target in targets:
        if target is None or (target.exists() and not target.is_file()):
            continue
        if target.resolve() in taken:
            raise PlanError(f"{target} would overwrite {taken[target.resolve()]}: choose another name")
        taken[target.resolve()] = f"another output, {target}"


def exit_with_verdict(decision: Verdict | None) -> None:
    """Exit with the status of a verdict; return if `decision` is None."""
    if decision is not None:
        raise typer.Exit(EXIT_STATUS[decision.outcome])


def annotation(model: Path, plan: MemoryPlan, decision: Verdict | None, grown: Growth | None) -> str:
    """Return the result as a GitHub workflow command: an error if over budget or grown, a warning if unknown."""
    lines = [f"arena {plan.arena_bytes:,} bytes, lower bound {plan.lower_bound_bytes:,} bytes"]
    if decision is not None:
        answers = {True: "fits", False: "does not fit", None: "unknown whether the plan fits"}
        lines.append(f"{answers[decision.fits]} the budget of {decision.budget:,} bytes")
    if grown is not None:
        lines.append(grown.description)
    failed = (decision is not None and decision.fits is False) or (grown is not None and grown.is_grown)
    kind = "error" if failed else "warning" if decision is not None and decision.fits is None else "notice"
    text, file = "\n".join(lines), printable(str(model))
    for sign, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        text, file = text.replace(sign, code), file.replace(sign, code)
    return f"::{kind} file={file.replace(':', '%3A').replace(',', '%2C')},title=Sublet::{text}"


class _AnswerConsole(Console):
    """A console raising BrokenPipeError if the reader closes the pipe: a partial output must not end with status 0."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def answer_console() -> Console:
    """Return the console for results. Lines are wrapped on a terminal only."""
    console = _AnswerConsole(highlight=False)
    return console if console.is_terminal else _AnswerConsole(highlight=False, width=PIPE_COLUMNS)


def warnings_json(source: Source) -> dict[str, Any]:
    """Return the remark and the warnings of the model's reader, for JSON."""
    return {"remark": source.remark, "warnings": [str(finding) for finding in source.warnings]}


def print_warnings(source: Source) -> None:
    """Print the warnings of the model's reader."""
    for finding in source.warnings:
        answer_console().print(Text(f"warning: {printable(str(finding))}", "yellow"))


def picture_width() -> int:
    """Return the width of a picture in columns: the width of the terminal, at most 120."""
    return min(Console().width, 120)


@contextmanager
def packing_progress() -> Iterator[Progress | None]:
    """Provide a callback showing each tried strategy on a terminal; None without a terminal."""
    if LOG.isEnabledFor(logging.INFO):
        yield lambda strategy, nbytes: LOG.info("packing by %s: %s", strategy, human(nbytes))
        return
    if not error_console.is_terminal:
        yield None
        return
    with error_console.status("packing") as status:
        yield lambda strategy, nbytes: status.update(f"packing: {strategy} needs {human(nbytes)}")


@contextmanager
def budget_progress() -> Iterator[Callable[[int], None]]:
    """Provide a callback showing each searched budget on a terminal, and without effect elsewhere."""
    if not error_console.is_terminal:
        yield lambda budget: None
        return
    with error_console.status("budget") as status:
        yield lambda budget: status.update(f"searching for recomputations to fit {human(budget)}")


@contextmanager
def advice_progress() -> Iterator[OnCandidate | None]:
    """Provide a callback showing each tried change and the smallest arena on a terminal; None without a terminal."""
    if not error_console.is_terminal:
        yield None
        return
    with error_console.status("advice") as status:

        def trying(idea: AdviceCandidate, advice: tuple[Advice, ...]) -> None:
            best = min((each.arena_bytes for each in advice), default=None)
            so_far = "" if best is None else f", the best so far is {human(best)}"
            status.update(escape(printable(f"trying {idea.what}{so_far} (Ctrl-C keeps the advice found)")))

        yield trying


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON object on standard output."""
    sys.stdout.write(json.dumps(content, indent=1) + "\n")
