"""The option `--patches`: the front of a network is computed patch by patch."""

from __future__ import annotations

from rich.text import Text

from sublet.analysis.options import Options
from sublet.cli.console import errors
from sublet.ir.model import Model
from sublet.planning.budget.patches import in_patches


def patching(source: Model, options: Options, text: str | None) -> Model:
    """Return the model with the front computed in patches, and print the choice; unchanged if `text` is None."""
    if text is None:
        return source
    choice = in_patches(source, options, text)
    errors.print(Text(choice.words), soft_wrap=True)
    return choice.model
