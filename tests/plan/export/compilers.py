"""The C and C++ compilers that are here: gcc, clang, and the clang of the wheel `ziglang` (group `clang`)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-Wshadow", "-Wcast-align", "-Wundef")


@dataclass(frozen=True)
class Compiler:
    """How one is called for one standard of one language."""

    command: tuple[str, ...]
    standard: str

    @property
    def language(self) -> str:
        return "c++" if "++" in self.standard else "c"

    def __str__(self) -> str:
        return f"{self.command[-1]}-{self.standard}"

    def objects(self, source: Path, *flags: str) -> tuple[Path | None, str]:
        """The object file of a source, None if it does not compile, and what the compiler says."""
        made = source.with_suffix(".o")
        command = [*self.command, "-x", self.language, f"-std={self.standard}", *flags, "-c", str(source)]
        done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True)
        return (None if done.returncode else made), done.stderr


def _found() -> list[Compiler]:
    zig = [(sys.executable, "-m", "ziglang", name) for name in ("cc", "c++")] if find_spec("ziglang") else []
    named = [(("gcc",), "c99"), (("gcc",), "c11"), (("g++",), "c++17"), (("clang",), "c99"), (("clang++",), "c++17")]
    here = [Compiler(command, standard) for command, standard in named if shutil.which(command[0])]
    return here + [Compiler(command, standard) for command, standard in zip(zig, ("c99", "c++17"), strict=False)]


COMPILERS = _found()
