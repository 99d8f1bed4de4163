"""The Paddle programs that tests read: those beside this file, and the larger ones where they are."""

from __future__ import annotations

from pathlib import Path

BESIDE = Path(__file__).parent / "programs"
SHARED = Path(__file__).parents[4] / "shared" / "programs" / "paddle"


def program_files() -> list[Path]:
    """Every ProgramDesc at hand, each once."""
    found = {path.name: path for folder in (SHARED, BESIDE) if folder.is_dir() for path in sorted(folder.iterdir())}
    return [path for path in found.values() if path.suffix in (".pb", ".pdmodel")]
