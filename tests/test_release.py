"""A release has one version, a heading in the changelog, and one command that refuses what it cannot build."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib.metadata import version

import sublet
from tests.support.prose import ROOT


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert version("sublet") == sublet.__version__ == project["version"]
    assert not re.search(r"^__version__", (ROOT / "src/sublet/__init__.py").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_command_finds_version_and_heading() -> None:
    """The expressions of `make release` each match one line."""
    for path, line in {"pyproject.toml": r'^version = ".*"', "CHANGELOG.md": "^## Unreleased$"}.items():
        assert len(re.findall(line, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)) == 1
    recipe = subprocess.run(
        ["make", "-n", "release", "VERSION=9.8.7"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert 'version = "9.8.7"' in recipe.stdout


def test_a_release_needs_two_pythons() -> None:
    done = subprocess.run(
        [ROOT / ".ci" / "release"],
        env={"PYTHONS": "python3", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "expected Python 3.11 and a newer one" in done.stderr
