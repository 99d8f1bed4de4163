"""Tutorials tell the truth: each command runs in the order of the page, and prints what the page shows.

python -m tests.test_tutorials    # run the commands, and write their outputs into the pages
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.prose import ROOT

PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(
    r'^```(?:\w+ title="(?P<file>[\w.]+)"\n(?P<content>.*?)|bash\n(?P<script>.*?)|text\n.*?)```$',
    re.MULTILINE | re.DOTALL,
)
"""A file to save; commands to run; or the output of the commands above."""


def replay(text: str, folder: Path) -> str:
    """Return the page with the outputs that the commands print now, run in a folder."""
    output = ""

    def block(match: re.Match[str]) -> str:
        nonlocal output
        if match["file"]:
            (folder / match["file"]).write_text(match["content"], encoding="utf-8")
        elif match["script"]:
            output = run_script(match["script"], folder)
            shown = text[match.end() :].startswith("\n\n```text\n")
            assert shown or not output, f"the page does not show the output of {match['script']}{output}"
        else:
            return f"```text\n{output}```"
        return match[0]

    return BLOCK.sub(block, text)


def run_script(script: str, folder: Path) -> str:
    """Return the output of commands without spaces at the ends of lines, run with the Python of this process."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, text=True, encoding="utf-8", timeout=600, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return re.sub(r" +$", "", done.stdout, flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert replay(text, tmp_path) == text, "to update the page: python -m tests.test_tutorials"


def test_another_output_on_the_page_is_noticed(tmp_path: Path) -> None:
    page = '```python title="a.py"\nprint(1)\n```\n\n```bash\npython a.py\nfalse\n```\n\n```text\n2\n```\n'
    assert replay(page, tmp_path) == page.replace("\n2\n", "\n1\n")


def test_a_missing_output_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="does not show"):
        replay("```bash\necho 1\n```\n\nText.\n", tmp_path)


def main() -> None:
    for page in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(replay(page.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
