"""Programs that Paddle makes at random, rewritten and mutated, judged by the checker, and run in Paddle.

    python -m tests.integrations.paddle.fuzz [--programs 200] [--first 0] [--mutants 6] [--kind proxy] [--arenas]

What the checker accepts must compute the same bits in Paddle; every rewriting of ours must be accepted. A program that
takes too long or too many bytes there has that for an answer. It needs a Python with paddlepaddle, which
SUBLET_PADDLE_PYTHON names.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sublet.integrations.paddle.arena import to_arena_form
from sublet.integrations.paddle.checking import judge_equivalence
from sublet.integrations.paddle.format.encoding import decode_program, encode_program
from sublet.integrations.paddle.format.program import PaddleProgram
from sublet.integrations.paddle.operators.shapes import infer_sizes
from sublet.integrations.paddle.policies import apply_own_policy
from sublet.integrations.paddle.policies.policy import run_updates_early

from .mutants import MUTATIONS, Mutation

SCRIPT = Path(__file__).with_name("in_paddle.py")
BATCH = 50
OURS, ARENA = "ours", "arena"
LIMITS = ("too much computing", "too long", "too much memory")
"""Answers of programs that `in_paddle.py` stopped."""
AGAIN = 200
"""So often is an original run again where something differs: some gradients in Paddle read what nobody wrote, of one
program in one of forty runs."""


@dataclass
class Tally:
    """What came of it. `unstable` are programs that Paddle itself computes in two ways, as it does some gradients."""

    arenas: bool = False  # whether arena forms are made too, and all runs of Paddle in the order that is written
    mutations: tuple[Mutation, ...] = MUTATIONS
    computing: int = 20  # seconds of the processor that a program may take
    programs: int = 0
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    needless: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    unstable: set[str] = field(default_factory=set)
    limited: Counter[str] = field(default_factory=Counter)  # how many took too much, and of what
    failing: set[str] = field(default_factory=set)  # programs that Paddle does not run as they are


def batch(first: int, count: int, mutants: int, python: str, tally: Tally) -> None:
    """Make, judge, run and compare some programs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _paddle(tally, python, "make", str(folder), str(first), str(count))
        told: dict[str, tuple[str, bool]] = {}
        for path in sorted(folder.glob("*.start.pb")):
            seed = path.name.split(".")[0]
            tally.programs += 1
            _variants(folder, seed, mutants, told, tally)
        answers = answered(tally, python, folder)
        for seed in {file.split(".")[0] for file in told if differs(file, answers) and told[file][1]}:
            for i in range(AGAIN):
                (folder / f"{seed}.again{i}.pb").write_bytes((folder / f"{seed}.pb").read_bytes())
        answers = answered(tally, python, folder)
        for wrong in settle(answers, told, tally):
            kept = Path(tempfile.gettempdir(), f"wrong.{told[wrong][0]}.{wrong}")
            kept.write_bytes((folder / wrong).read_bytes())


Answer = list[object]
"""The bits of the losses and the hash of what persists; where nothing was computed, the kind of error and its text."""


def differs(file: str, answers: Mapping[str, Answer]) -> bool:
    """Whether a variant computes something else than its program. Where neither computes anything they are alike: of a
    value that nobody wrote it may be another operator that complains.
    """
    own, other = answers[f"{file.split('.')[0]}.pb"], answers[file]
    return own[0] not in LIMITS and own != other and (isinstance(own[0], list) or isinstance(other[0], list))


def settle(answers: Mapping[str, Answer], told: Mapping[str, tuple[str, bool]], tally: Tally) -> list[str]:
    """Count what came of variants, of each of which its kind and whether it was accepted is told; the wrong ones."""
    for file, answer in answers.items():
        seed = file.split(".")[0]
        if ".again" in file and answer != answers[f"{seed}.pb"]:
            tally.unstable.add(seed)
        if file == f"{seed}.pb" and not isinstance(answer[0], list) and answer[0] not in LIMITS:
            tally.failing.add(seed)
        if answer[0] in LIMITS:
            tally.limited[f"{answer[0]}{'' if file in told else ' (as it is)'}"] += 1
    wrong = []
    for file, (kind, accepted) in told.items():
        seed = file.split(".")[0]
        if seed in tally.unstable or answers[f"{seed}.pb"][0] in LIMITS:
            continue
        if accepted and differs(file, answers):
            tally.wrong.append(f"{file} ({kind}): accepted, but in Paddle: {str(answers[file])[:200]}")
            wrong.append(file)
        if not accepted and answers[file] == answers[f"{seed}.pb"]:
            tally.needless[kind] += 1
    return wrong


def answered(tally: Tally, python: str, folder: Path) -> dict[str, Answer]:
    """What the programs of a folder compute in Paddle."""
    _paddle(tally, python, "run", str(folder), str(tally.computing))
    answers: dict[str, Answer] = json.loads((folder / "answers.json").read_text())
    return answers


def _variants(folder: Path, seed: str, mutants: int, told: dict[str, tuple[str, bool]], tally: Tally) -> None:
    original = decode_program((folder / f"{seed}.pb").read_bytes(), seed)
    loss, sizes = json.loads((folder / f"{seed}.json").read_text())["loss"], infer_sizes(original)
    own = judge_equivalence(original, original, sizes, keep=[loss])
    if not own.equal:
        tally.wrong.append(f"{seed}: the checker does not follow the program: {own.findings[0]}")
        return
    rng = random.Random(int(seed))
    rewritten: list[tuple[str, PaddleProgram | None]] = [(OURS, apply_own_policy(original, {loss}))]
    if tally.arenas:
        early = run_updates_early(original)
        rewritten.append((ARENA, to_arena_form(early, infer_sizes(early), {loss}).program))
    for mutation in rng.choices(tally.mutations, k=mutants):
        rewritten.append((mutation.__name__, mutation(rng, original)))
    for i, (kind, program) in enumerate(rewritten):
        if program is None or program == original:
            continue
        judged = judge_equivalence(original, program, sizes, keep=[loss])
        (tally.accepted if judged.equal else tally.refused)[kind] += 1
        if kind in (OURS, ARENA) and not judged.equal:
            tally.wrong.append(f"{seed}: our own rewriting ({kind}) is refused: {judged.findings[0]}")
        file = f"{seed}.{i}.pb"
        (folder / file).write_bytes(encode_program(program))
        told[file] = (kind, judged.equal)


def _paddle(tally: Tally, python: str, *arguments: str) -> None:
    """Run the script with Paddle."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}  # Paddle lists the names of loops as a set does
    if tally.arenas:
        environment["FLAGS_new_executor_sequential_run"] = "1"
    done = subprocess.run([python, str(SCRIPT), *arguments], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--mutants", type=int, default=6)
    kinds = {mutation.__name__: (mutation,) for mutation in MUTATIONS}
    parser.add_argument("--kind", choices=kinds, help="mutants of this kind only")
    parser.add_argument("--arenas", action="store_true", help="arena forms too")
    chosen = parser.parse_args()
    tally = Tally(chosen.arenas, kinds.get(chosen.kind, MUTATIONS))
    python = os.environ.get("SUBLET_PADDLE_PYTHON", sys.executable)
    for first in range(chosen.first, chosen.first + chosen.programs, BATCH):
        batch(first, min(BATCH, chosen.first + chosen.programs - first), chosen.mutants, python, tally)
        print(tally.programs, dict(tally.accepted), dict(tally.refused), "needless", dict(tally.needless), flush=True)
        print("limits:", dict(tally.limited), "failing as they are:", len(tally.failing), end="; ")
        print("unstable:", *sorted(tally.unstable), *tally.wrong, sep="\n  ", flush=True)
    raise SystemExit(bool(tally.wrong))


if __name__ == "__main__":
    main()
