"""The command line: `sublet plan | export | check | show | explain | run | pack | doctor | transpile`.

Exit status: 0 the network fits, or the plan is right; 1 the network does not fit, or the plan is wrong; 2 the input is
bad; 3 the verdict is unknown, or covers a part of the plan only.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated, Any, TextIO, cast

import typer

from sublet.cli.check import check
from sublet.cli.console import (
    BAD_INPUT,
    READER_LEFT,
    FirstLine,
    answer_console,
    discard_answers,
    open_missing_streams,
    print_error,
    print_stages,
)
from sublet.cli.doctor import doctor
from sublet.cli.explain import explain
from sublet.cli.export import export
from sublet.cli.pack import pack
from sublet.cli.plan import plan
from sublet.cli.run import run
from sublet.cli.show import show
from sublet.integrations.registry import installed_integrations, resolve

app = typer.Typer(
    name="sublet",
    help="The smallest memory a neural network can run in: planned, proven, shown.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""The base class of errors for wrong options and arguments; Typer exports only the subclasses."""


def _print_version(asked: bool) -> None:
    if asked:
        answer_console().print(f"sublet {version('sublet')}")
        raise typer.Exit


for _command in (plan, export, check, show, explain, run):
    app.command()(_command)
for _words, _function in (
    (words, function) for each in installed_integrations() for words, function in each.commands.items()
):
    if _words.isidentifier():  # a command of its own, not an option of another
        app.command(name=_words)(resolve(_function))
for _command in (pack, doctor):
    app.command()(_command)


@app.callback()
def sublet(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the first line of the answer only.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print the stages with their times on standard error.")
    ] = False,
) -> None:
    """Plan, prove and show the smallest memory a neural network can run in."""
    if verbose:
        print_stages()
    if quiet and "--json" not in sys.argv:
        sys.stdout = cast(TextIO, FirstLine(sys.stdout))


def main() -> None:
    """Run the command line and end the process with its exit status.

    With `--json`, a usage error is printed as a JSON object too. An output that cannot be written is an error, unless
    the reader of the output closed the pipe early (exit status 141).
    """
    open_missing_streams()
    answer = sys.stdout
    try:
        status = _run_app()
        answer.flush()
    except BrokenPipeError:
        discard_answers()
        status = READER_LEFT
    except OSError as error:
        discard_answers()
        print_error(error, f"the answer cannot be written: {error}", in_json=False)
        status = BAD_INPUT
    sys.exit(status)


def _run_app() -> str | int | None:
    """Run the command line and return the exit status.

    Raises BrokenPipeError if the reader of the output closed the pipe.
    """
    try:
        if "--json" not in sys.argv:
            app()
            return None
        return app(standalone_mode=False)  # type: ignore[no-any-return]
    except USAGE_ERROR as error:
        print_error(error, error.format_message(), in_json=True)
        return BAD_INPUT
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Typer and rich would end with status 1
            raise end.__context__ from None
        return end.code


if __name__ == "__main__":
    main()
