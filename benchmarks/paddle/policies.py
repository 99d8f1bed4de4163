"""Training programs that Paddle writes, and what each policy makes of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from sublet.integrations.paddle.arena import ArenaForm, to_arena_form
from sublet.integrations.paddle.format.encoding import decode_program
from sublet.integrations.paddle.format.program import PaddleProgram
from sublet.integrations.paddle.operators.shapes import infer_sizes
from sublet.integrations.paddle.peaks.memory import BytesFromSizes, BytesInArena, BytesOfRenamed
from sublet.integrations.paddle.peaks.scopes import ScopedVariable
from sublet.integrations.paddle.policies import PASSES, apply_own_policy
from sublet.integrations.paddle.policies.levels import share_names_by_level, share_names_by_pool
from sublet.integrations.paddle.running.verify import Training, find_paddle_python
from sublet.integrations.paddle.transpile import PASSES_NOT_IN_ARENA

WRITER = Path(__file__).with_name("programs.py")
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "translation, 30 and 30 words": ("translation",),
    "translation, 40 and 50 words": ("translation", "--source", "40", "--target", "50"),
    "branch": ("branch", "--batch", "64", "--width", "256"),
    "transformer, 4 layers": ("transformer",),
    "ResNet-50, batch 4": ("resnet", "--batch", "4"),
}


@dataclass(frozen=True)
class Case:
    program: PaddleProgram
    training: Training

    @property
    def keep(self) -> frozenset[ScopedVariable]:
        return frozenset(ScopedVariable(0, name) for name in self.training.fetch)


def written(arguments: tuple[str, ...], steps: int) -> Case:
    """A program that Paddle writes for these arguments, and how it is run."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        command = [find_paddle_python(), str(WRITER), arguments[0], name, *arguments[1:]]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        loss = json.loads((folder / "about.json").read_text())["loss"]
        feeds: dict[int, dict[str, np.ndarray]] = {}
        with np.load(folder / "feeds.npz") as arrays:
            for key in arrays.files:
                feed, _, step = key.rpartition(".")
                feeds.setdefault(int(step), {})[feed] = arrays[key]
        program = decode_program((folder / "program.pb").read_bytes(), arguments[0])
        startup = (folder / "startup.pb").read_bytes()
    return Case(program, Training(startup, [feeds[step] for step in sorted(feeds)], [loss], steps))


Made = tuple[PaddleProgram, BytesFromSizes]


def as_written(case: Case) -> Made:
    return case.program, BytesFromSizes(infer_sizes(case.program))


def renamed(case: Case, changed: PaddleProgram) -> Made:
    """A program in which names are exchanged: the same values in the same order."""
    return changed, BytesOfRenamed(infer_sizes(case.program), changed)


def own(case: Case) -> Made:
    changed = apply_own_policy(case.program, case.training.fetch)
    return changed, BytesFromSizes(infer_sizes(changed))


def arena_form(case: Case, *, poisoned: bool = False) -> ArenaForm:
    """The arena form, of what the passes make that share no names. A poisoned arena is full of NaN before every run."""
    passes = [change for name, change in PASSES.items() if name not in PASSES_NOT_IN_ARENA]
    program = reduce(lambda before, change: change(before, case.training.fetch), passes, case.program)
    return to_arena_form(program, infer_sizes(program), case.training.fetch, poisoned=poisoned)


def in_arena(case: Case) -> Made:
    form = arena_form(case)
    return form.program, BytesInArena(infer_sizes(form.program), frozenset(form.places))


AS_WRITTEN, ARENA = "as written", "Sublet, arena"
POLICIES: Mapping[str, Callable[[Case], Made]] = {
    AS_WRITTEN: as_written,
    "seed": lambda case: renamed(
        case, share_names_by_pool(case.program, infer_sizes(case.program), case.keep).build_program()
    ),
    "level 0": lambda case: renamed(case, share_names_by_level(case.program, 0, case.training.fetch).build_program()),
    "level 1": lambda case: renamed(case, share_names_by_level(case.program, 1, case.training.fetch).build_program()),
    "Sublet": own,
    ARENA: in_arena,
}
