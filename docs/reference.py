"""The API reference, from docstrings: `python docs/reference.py FOLDER`.

Names that `sublet` loads when somebody asks for them are asked for first: pdoc would list them without a word. What it
does not find is an error.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pdoc

import sublet

PUBLIC = (
    "sublet",
    "sublet.base.errors",
    "sublet.checker.external",
    "sublet.packing",
    "sublet.plan",
    "sublet.runtime.kernel",
    "sublet.training.schedules",
    "sublet.integrations.torch.api",
)


def main() -> None:
    """Write the pages."""
    vars(sublet).update({name: getattr(sublet, name) for name in sublet.__all__})
    warnings.filterwarnings("error", message="Found .* does not resolve")
    pdoc.render.configure(show_source=False)
    pdoc.pdoc(*PUBLIC, output_directory=Path(sys.argv[1]))


if __name__ == "__main__":
    main()
