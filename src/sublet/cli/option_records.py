"""Commands from option records: each field of a frozen record is one argument or option of the command line."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

from sublet.cli.console import reporting_errors

Record = TypeVar("Record")


def command_from(record: type[Record]) -> Callable[[Callable[[Record], None]], Callable[..., None]]:
    """Decorate the function of a command, a function of one `record`: return the command with an option a field.

    Typer reads the signature of the command. Names, types, helps and defaults of the options are those of the fields,
    in the order of the fields. The command reports errors of the function; the field `in_json` selects JSON.
    """

    def make_command(function: Callable[[Record], None]) -> Callable[..., None]:
        @wraps(function)
        def run_command(**values: Any) -> None:
            with reporting_errors(in_json=bool(values.get("in_json"))):
                function(record(**values))

        run_command.__signature__ = signature(record, eval_str=True)  # type: ignore[attr-defined]
        return run_command

    return make_command
