"""Reading of packing problems from CSV or JSON files."""

from __future__ import annotations

from pathlib import Path

from sublet.base.errors import ProblemError
from sublet.base.files import read_text
from sublet.packing.csv_format import Lifetimes, read_csv
from sublet.packing.json_format import read_json
from sublet.packing.problem import Problem


def read_problem(path: str | Path, lifetimes: Lifetimes = Lifetimes.half_open) -> Problem:
    """Read a CSV or JSON problem; the suffix selects the format, else the first character.

    Raises ProblemError with the position of the mistake. Offsets in a CSV are dropped; `read_csv` keeps offsets.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".json" or (suffix != ".csv" and read_text(path, ProblemError).lstrip().startswith("{")):
        if lifetimes is not Lifetimes.half_open:
            raise ProblemError(f"{path}: a problem with a partial order has no lifetimes to be {lifetimes}")
        return read_json(path)
    return read_csv(path, lifetimes)[0]
