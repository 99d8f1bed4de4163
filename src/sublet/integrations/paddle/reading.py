"""The entry point of the Paddle reader: a program of either format as a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sublet.integrations.paddle.convert.model import load_program
from sublet.integrations.paddle.convert.pir import load_pir
from sublet.ir.model import Model


def read_file(path: Path, dims: Mapping[str, int] | None, optimize: str, assume: Mapping[str, str]) -> Model:
    """Read a Paddle program of either format. Raises ModelError for a malformed file and for open extents."""
    return load_pir(path, dims) if path.suffix.lower() == ".json" else load_program(path, dims)
