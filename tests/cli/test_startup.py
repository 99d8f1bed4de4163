"""Start-up: a command or an import loads only the libraries that it needs. Seconds stand in the benchmarks' page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import sublet

TEXT = "graph @g(%x: f32[4]) {\n  %y: f32[4] = nn.relu(%x)\n  return %y\n}\n"


def modules_after(statement: str) -> set[str]:
    """Return the names of the modules that a new process has imported after a statement."""
    script = f"import sys\n{statement}\nprint(*sys.modules, file=sys.stderr)"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr.split()
    )


def test_an_import_of_the_package_loads_no_numpy() -> None:
    loaded = modules_after("import sublet")
    assert "sublet" in loaded
    assert not {"numpy", "torch", "onnx", "highspy"} & loaded


def test_every_public_name_is_found_at_first_use() -> None:
    assert all(getattr(sublet, name) is not None for name in sublet.__all__)
    assert set(sublet.__all__) <= set(dir(sublet))
    with pytest.raises(AttributeError, match="module 'sublet' has no attribute 'plans'"):
        _ = sublet.plans


def test_the_version_is_printed_without_the_commands() -> None:
    loaded = modules_after("sys.argv = ['sublet', '--version']\nfrom sublet.__main__ import main\nmain()")
    assert not {"typer", "numpy", "sublet.cli.app"} & loaded


def test_a_plan_loads_no_optimiser_and_no_framework(tmp_path: Path) -> None:
    file = tmp_path / "small.sublet"
    file.write_text(TEXT, encoding="utf-8")
    loaded = modules_after(f"import sublet\nsublet.plan_memory(sublet.read_model({str(file)!r}))")
    assert "sublet.planning.pipeline" in loaded
    assert not {"highspy", "torch", "onnx"} & loaded
