"""The option `--patches`: the front of a network is computed patch by patch."""

from __future__ import annotations

from rich.text import Text

from sublet.analysis.options import Options
from sublet.cli.console import error_console
from sublet.ir.model import Model
from sublet.planning.budget.patches import choose_patches


def apply_patches_option(source: Model, options: Options, text: str | None) -> Model:
    """Return the model with the front computed in patches, and print the choice; unchanged if `text` is None."""
    if text is None:
        return source
    choice = choose_patches(source, options, text)
    error_console.print(Text(choice.words), soft_wrap=True)
    return choice.model
