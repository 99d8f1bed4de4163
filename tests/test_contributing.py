"""The recipes of CONTRIBUTING.md are complete: applied to a copy of the sources in order, each passes its tests."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sublet.cli.doctor import CORES

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"^### Add ([^\n]*)\n.*?```diff\n(.*?)```\n\n((?:    [^\n]*\n)+)", TEXT, re.MULTILINE | re.DOTALL)
WITHOUT_EDITABLE_INSTALL = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path[:] = [path for path in sys.path if path != SOURCES]
"""


def apply_diff(diff: str, root: Path) -> None:
    """Apply a diff whose hunks have no line numbers: the lines of a hunk occur exactly once in the file."""
    for path, body in re.findall(r"^--- .*\n\+\+\+ b/(.*)\n((?:[@ +-].*\n|\n)+?)(?=^--- |\Z)", diff, re.MULTILINE):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        for hunk in body.split("@@\n")[1:]:
            lines = hunk.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if line[0] in " -")
            after = "".join(line[1:] for line in lines if line[0] in " +")
            assert text.count(before) == 1 or not text, f"{path}: {before}"
            text = text.replace(before, after, 1) if before else after
        file.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of sources and tests with all recipes applied."""
    root = tmp_path_factory.mktemp("contributing")
    for folder, left_out in (("src", ()), ("tests", ("integrations", "programs"))):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", *left_out))
    shutil.copy(ROOT / "pyproject.toml", root)
    for core in (*CORES, "sublet.integrations.onnx.kernels._sessions"):
        found = importlib.util.find_spec(core)
        assert found is not None
        assert found.origin is not None
        shutil.copy(found.origin, root / "src" / Path(*core.split(".")[:-1]))
    start = WITHOUT_EDITABLE_INSTALL.replace("SOURCES", repr(str(ROOT / "src")))
    (root / "src" / "sitecustomize.py").write_text(start, encoding="utf-8")
    for _, diff, _ in RECIPES:
        apply_diff(diff, root)
    for project in root.glob("*/pyproject.toml"):
        install_entry_points(project)
    return root


def install_entry_points(project: Path) -> None:
    """Write the metadata by which Python finds the entry points of a package, as an installer does."""
    declared = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    info = project.parent / f"{declared['name'].replace('-', '_')}-{declared['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {declared['name']}\nVersion: {declared['version']}\n", encoding="utf-8")
    lines = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in declared["entry-points"].items()
    )
    (info / "entry_points.txt").write_text("".join(lines), encoding="utf-8")


def changed_lines(diff: str) -> int:
    """Return the number of lines that a diff adds or removes."""
    return sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in diff.splitlines())


def test_there_is_a_recipe_for_each_kind_of_addition() -> None:
    assert [name for name, _, _ in RECIPES] == ["an op", "a kernel", "a pass", "a packing strategy", "an integration"]
    assert all(changed_lines(diff) <= 30 for _, diff, _ in RECIPES)


@pytest.mark.parametrize("recipe", RECIPES, ids=[name.replace(" ", "-") for name, _, _ in RECIPES])
def test_a_recipe_passes_its_tests(recipe: tuple[str, str, str], copy: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(copy / "src"), str(copy / "stack")))}
    for command in recipe[2].splitlines():
        words = (
            command.strip().replace("python", sys.executable, 1).replace("-m pytest", "-m pytest -p no:cacheprovider")
        )
        done = subprocess.run(words, shell=True, cwd=copy, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
