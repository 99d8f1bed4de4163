"""Tutorials tell the truth: each command runs in the order of the page, and prints what the page shows.

python -m tests.test_tutorials    # run the commands, write outputs and pictures into docs/tutorials, print the seconds
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from benchmarks.models.wheels import ModelsUnavailableError, unpacked
from tests.support.prose import ROOT
from tests.viz.chromium import PROGRAM, Chromium

PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(
    r'^```(?:\w+ title="(?P<file>[\w.]+)"\n(?P<content>.*?)|bash\n(?P<script>.*?)|text\n.*?)```$',
    re.MULTILINE | re.DOTALL,
)
"""A file to save; commands to run; or the output of the commands above."""

PICTURE = re.compile(r"^!\[.*\]\((\w+\.png)\)$", re.MULTILINE)
WHEEL = re.compile(r"^pip download .* (\S+==\S+)$", re.MULTILINE)
DIFFERENCE = 0.03
"""Mean difference of two pictures, of 1: fonts differ between machines. Another order of a network gives 0.04."""


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
    """Return the output of commands without spaces at the ends of lines, run with the Python of this process.

    Commands without a pipe or a file print as on a terminal of 80 columns, without colours.
    """
    terminal = {} if re.search("[|>]", script) else {"TTY_COMPATIBLE": "1", "TERM": "dumb"}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "PYTHONIOENCODING": "utf-8", **terminal}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, text=True, encoding="utf-8", timeout=600, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return re.sub(r" +$", "", done.stdout, flags=re.MULTILINE)


def picture(name: str, folder: Path) -> bytes | None:
    """Return a picture drawn by the commands, or the page in `folder` as a browser shows it; None without a browser."""
    if (folder / name).exists():
        return (folder / name).read_bytes()
    if PROGRAM is None:
        return None
    with Chromium(1200, 700) as browser:
        browser.open(folder / "plan.html")
        browser.settle()
        return browser.screenshot()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    try:
        for wheel in WHEEL.findall(text):
            unpacked(wheel)
    except ModelsUnavailableError as error:
        pytest.skip(str(error))
    assert replay(text, tmp_path) == text, "to update the page: python -m tests.test_tutorials"
    names = PICTURE.findall(text)
    assert names, "every tutorial shows a picture"
    for name in names:
        content = picture(name, tmp_path)
        if content is not None:
            files = page.parent / name, tmp_path / "now.png"
            files[1].write_bytes(content)
            shown, now = (matplotlib.image.imread(path)[:, :, :3] for path in files)
            assert shown.shape == now.shape
            assert np.abs(shown - now).mean() < DIFFERENCE, f"{name}: to update: python -m tests.test_tutorials"


def test_another_output_on_the_page_is_noticed(tmp_path: Path) -> None:
    page = '```python title="a.py"\nprint(1)\n```\n\n```bash\npython a.py\nfalse\n```\n\n```text\n2\n```\n'
    assert replay(page, tmp_path) == page.replace("\n2\n", "\n1\n")


def test_a_missing_output_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="does not show"):
        replay("```bash\necho 1\n```\n\nText.\n", tmp_path)


def main() -> None:
    for page in PAGES:
        with tempfile.TemporaryDirectory() as name:
            folder, before = Path(name), os.times()
            text = replay(page.read_text(encoding="utf-8"), folder)
            after = os.times()
            page.write_text(text, encoding="utf-8")
            for each in PICTURE.findall(text):
                if content := picture(each, folder):
                    (page.parent / each).write_bytes(content)
            seconds = after.children_user + after.children_system - before.children_user - before.children_system
            print(f"{page.stem}: {seconds:.0f} s of the processor, {after.elapsed - before.elapsed:.0f} s of waiting")


if __name__ == "__main__":
    main()
