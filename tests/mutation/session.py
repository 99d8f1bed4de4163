"""Mutants under test: which tests run which lines, and which mutants they notice."""

from __future__ import annotations

import argparse
import ast
import gc
import os
import pickle
import random
import resource
import signal
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.operators import Mutant, mutants
from tests.mutation.swap import Functions

SOURCE = Path(__file__).parents[2] / "src" / "sublet"
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
SURVIVED, NO_PROGRAM = 200, 201
"""How a child ends that no test has ended before; else by the number of the test, or by a signal."""
GIBIBYTE = 1 << 30


def equivalents() -> dict[tuple[str, str, str, str], str]:
    """The reasons for mutants that nobody can notice, by file, function, statement before and after."""
    found = {}
    for told in EQUIVALENT.read_text(encoding="utf-8").split("\n\n"):
        where, before, after, *reason = [line.strip() for line in told.strip().splitlines()]
        file, function = where.split()
        found[file, function, before.removeprefix("- "), after.removeprefix("+ ")] = " ".join(reason)
    return found


@dataclass
class Row:
    """What became of the mutants of a folder."""

    killed: int = 0
    survived: int = 0
    equivalent: int = 0

    def __str__(self) -> str:
        judged = self.killed + self.survived
        share = f"{100 * self.killed / judged:.1f} %" if judged else ""
        return f"{judged + self.equivalent:>8}{self.killed:>8}{self.survived:>10}{self.equivalent:>12}{share:>9}"


class Session:
    """A plugin of pytest that runs mutants where tests would be run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.status = 0
        self.folders = {name: SOURCE / name for name in options.folders}
        self.kills: Counter[int] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            return False
        self.items = session.items
        self.functions = Functions(tuple(self.folders.values()))
        begin = time.monotonic()
        gc.freeze()  # what children share with their parent is not touched
        self.by_line, self.seconds = self._lines_of_tests()
        left = len(self.items) - len(self.seconds)
        print(f"{len(self.seconds)} tests, {left} left out as slow, {time.monotonic() - begin:.0f} s", flush=True)
        rows = {name: self._judged(name, folder) for name, folder in self.folders.items()}
        print(f"\n{'':<12} mutants  killed  survived  equivalent   killed")
        for name, row in rows.items():
            print(f"{name:<12}{row}")
        return True

    def _lines_of_tests(self) -> tuple[dict[tuple[Path, int], set[int]], dict[int, float]]:
        """For each line the tests that run it, and the seconds of those that pass in time; found out in a child."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                watched: object = self._watched()
            except BaseException:
                watched = traceback.format_exc()
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(watched, pipe)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            by_test = pickle.load(pipe)
        os.waitpid(child, 0)
        if isinstance(by_test, str):
            raise RuntimeError(by_test)
        by_line: dict[tuple[Path, int], set[int]] = defaultdict(set)
        for i, (_, lines) in by_test.items():
            for line in lines:
                by_line[line].add(i)
        return by_line, {i: seconds for i, (seconds, _) in by_test.items()}

    def _watched(self) -> dict[int, tuple[float, set[tuple[Path, int]]]]:
        _settle_in()
        lines: set[tuple[Path, int]] = set()
        for path in self.functions.paths():
            self.functions.note_lines(path, _parsed(path), lines)
        signal.signal(signal.SIGPROF, _too_long)
        found = {}
        for i, item in enumerate(self.items):
            lines.clear()
            begin = time.process_time()
            if self._passes_in_time(item):
                found[i] = time.process_time() - begin, set(lines)
        return found

    def _passes_in_time(self, item: pytest.Item) -> bool:
        try:
            signal.setitimer(signal.ITIMER_PROF, self.options.longest)
            passes = not _fails(item)
            signal.setitimer(signal.ITIMER_PROF, 0)
        except Exception:  # the time was over between two steps of pytest
            return False
        return passes

    def _judged(self, name: str, folder: Path) -> Row:
        row, known = Row(), equivalents()
        begin, count = time.monotonic(), 0
        for path, tree, mutant in self._sample(folder):
            if self.options.seconds and time.monotonic() - begin > self.options.seconds:
                break
            where = str(path.relative_to(SOURCE))
            before, after = mutant.told()
            if (where, mutant.function, before, after) in known:
                row.equivalent += 1
                continue
            tests = self._tests_of(path, mutant)
            end = self._end(path, tree, mutant, tests) if tests else SURVIVED
            if end == NO_PROGRAM:
                continue
            count += 1
            if end == SURVIVED:
                unseen = "" if tests else "  (no test runs it)"
                row.survived += 1
                print(f"{where}:{mutant.line} {mutant.function}{unseen}\n  - {before}\n  + {after}", flush=True)
            else:
                row.killed += 1
            if count % 100 == 0:
                print(f"{name}: {count} mutants, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        return row

    def _sample(self, folder: Path) -> Iterator[tuple[Path, ast.Module, Mutant]]:
        """Mutants in turn of all functions, each time another of a function."""
        rng = random.Random(self.options.seed)
        turns: dict[tuple[Path, str], list[tuple[ast.Module, Mutant]]] = defaultdict(list)
        for path in sorted(folder.rglob("*.py")):
            tree = _parsed(path)
            for mutant in mutants(path, tree):
                if f"{path.relative_to(SOURCE)}:{mutant.line}".startswith(self.options.only):
                    turns[path, mutant.function].append((tree, mutant))
        for several in turns.values():
            rng.shuffle(several)
        keys = list(turns)
        rng.shuffle(keys)
        longest = max(map(len, turns.values()), default=0)
        in_turn = [(key[0], *turns[key][i]) for i in range(longest) for key in keys if i < len(turns[key])]
        yield from in_turn[: self.options.sample or None]

    def _tests_of(self, path: Path, mutant: Mutant) -> list[int]:
        """The tests that run its line, those first that kill much in little time."""
        running = {i for line in mutant.lines for i in self.by_line.get((path, line), ())}
        return sorted(running, key=lambda i: (self.seconds[i] + 0.01) / (1 + self.kills[i]))

    def _end(self, path: Path, tree: ast.Module, mutant: Mutant, tests: Sequence[int]) -> int:
        """How a child ends in which the mutant runs: SURVIVED, NO_PROGRAM, or anything else when it is killed."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            self._run(path, tree, mutant, tests, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            killer = pipe.read()
        _, status = os.waitpid(child, 0)
        if killer:
            self.kills[int(killer)] += 1
        return os.waitstatus_to_exitcode(status)

    def _run(self, path: Path, tree: ast.Module, mutant: Mutant, tests: Sequence[int], writing: int) -> None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_DATA, (16 * GIBIBYTE, 16 * GIBIBYTE))
        _settle_in()
        try:
            mutant.put(mutant.new)
            self.functions.become(path, tree)
        except (ValueError, SyntaxError):
            os._exit(NO_PROGRAM)
        try:
            for i in tests:
                seconds = 2 + 10 * self.seconds[i]
                signal.setitimer(signal.ITIMER_PROF, seconds)
                signal.setitimer(signal.ITIMER_REAL, 20 * seconds)
                if _fails(self.items[i]):
                    os.write(writing, str(i).encode())
                    os._exit(1)
        except BaseException:
            os._exit(2)
        os._exit(SURVIVED)


def _fails(item: pytest.Item) -> bool:
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def _too_long(*_: object) -> None:
    raise TimeoutError


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _settle_in() -> None:
    """A child says nothing, and collects no garbage, which would take longer than most tests."""
    gc.disable()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
