"""The command line, run in this process."""

from __future__ import annotations

import sys

import pytest

from sublet.cli.app import main


class Cli:
    """Runs `sublet` in this process, as the console script does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
        self.monkeypatch = monkeypatch
        self.capsys = capsys

    def __call__(self, *words: object) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["sublet", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = self.capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(stop.value.code or 0), captured.out, captured.err
