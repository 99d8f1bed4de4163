"""Fixtures of the tests of commands."""

from __future__ import annotations

import pytest

from tests.support.command_line import Cli


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line."""
    return Cli(monkeypatch, capsys)


@pytest.fixture
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of up to 200 columns stay on one line."""
    monkeypatch.setenv("COLUMNS", "200")
