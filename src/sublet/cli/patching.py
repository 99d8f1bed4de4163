"""What the commands do about patches: the front of a network computed piece by piece."""

from __future__ import annotations

from rich.text import Text

from sublet.analysis.options import Options
from sublet.cli.console import errors
from sublet.ir.model import Model
from sublet.planning.budget.patches import in_patches


def patching(source: Model, options: Options, text: str | None) -> Model:
    """The model with its front in patches where that is asked for, and a word on it."""
    if text is None:
        return source
    found = in_patches(source, options, text)
    errors.print(Text(found.words), soft_wrap=True)
    return found.model
