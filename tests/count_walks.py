"""Count how far a reader walks who follows a command by its first calls: rooms entered, and returns to earlier rooms.

    python -m tests.count_walks            # sublet plan, plan_memory, compile and a run, torch.compile

A walk is the sequence of functions of Sublet in the order of their first calls. Each step from one room to another is
counted: into a room not seen yet (entered), or back into a room seen before (a return). Files are counted alike.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import numpy as np
import onnx

import sublet

SOURCE = str(Path(sublet.__file__).parent)
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"


def walk_of(action: Callable[[], Any]) -> list[str]:
    """Return the file of each function of Sublet, below its folder, in the order of the functions' first calls."""
    seen: set[Any] = set()
    files: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and code.co_name[0] != "<" and code not in seen:
            seen.add(code)
            files.append(code.co_filename[len(SOURCE) + 1 :])

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return files


def steps(places: list[str]) -> tuple[int, int]:
    """Return the number of places entered, and the number of returns to places left before."""
    entered: set[str] = set()
    returns, here = 0, ""
    for place in places:
        if place != here:
            returns += place in entered
            entered.add(place)
        here = place
    return len(entered), returns


def main() -> None:
    warnings.simplefilter("ignore")
    from sublet.cli.app import main as command  # imported before it is walked

    def plan_command(folder: str) -> None:
        try:
            sys.argv = ["sublet", "plan", str(LIGHT), "--out", f"{folder}/plan.json"]
            command()
        except SystemExit:
            pass

    graph = sublet.read_model(LIGHT).graph  # reading is no part of `plan_memory`
    with TemporaryDirectory() as folder:
        walks: dict[str, Callable[[], Any]] = {
            "sublet plan": lambda: plan_command(folder),
            "plan_memory": lambda: sublet.plan_memory(graph),
            "compile and a run": lambda: sublet.compile(LIGHT)(data_0=np.zeros((1, 3, 224, 224), np.float32)),
        }
        for name, action in walks.items():
            show(name, walk_of(action))
    import torch

    module = torch.compile(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), backend="sublet")
    show("torch.compile", walk_of(lambda: module(torch.zeros(2, 4)).sum().backward()))


def show(name: str, files: list[str]) -> None:
    """Print the counts of one walk."""
    rooms = [file.rpartition("/")[0] or "." for file in files]
    (entered, returns), (opened, reopened) = steps(rooms), steps(files)
    print(
        f"{name}: {len(files)} functions; {entered} rooms, {returns} returns to a room; "
        f"{opened} files, {reopened} returns to a file"
    )


if __name__ == "__main__":
    main()
