"""The gallery has twelve plans with three sentences each; `make docs` runs their commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.gallery import EXHIBITS, gallery_markdown, run_command, write_models
from tests.support.prose import measure_page


def test_every_exhibit_says_what_to_see() -> None:
    assert len({exhibit.name for exhibit in EXHIBITS}) == 12
    for exhibit in EXHIBITS:
        assert len(re.findall(r"[.!](?: |$)", exhibit.text)) == 3, exhibit.title
    page = measure_page(gallery_markdown())
    assert page.words_per_sentence <= 18
    assert page.pronouns_per_100 <= 6


def test_the_commands_have_their_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_models(tmp_path)
    made = {command.split()[1] for exhibit in EXHIBITS for command in exhibit.commands if "show" not in command}
    assert made <= {path.name for path in tmp_path.iterdir()}
    assert run_command("plan nested.sublet --html page.html") == 0
    assert run_command("check nested.pte") == 1
    assert run_command("plan missing.onnx") == 2
