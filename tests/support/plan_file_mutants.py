"""Plan files changed at random: every field of every record at any depth, by a walk over the JSON itself.

A changed file is refused by who loads it or by the checker; or it is another true description of a plan that runs
right. Who says what is true here is not the checker: lives, peak, moves and the like are those of the plan as it was
made, sums and bounds are added up again from its packing problem, and runs are made in real bytes.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path as File
from typing import Any

from sublet.analysis.options import Options
from sublet.api.sources import model_of_plan
from sublet.base.errors import SubletError
from sublet.checker import judge
from sublet.ir.graph import Graph
from sublet.ir.text import parse, to_text
from sublet.packing import MemoryRegion
from sublet.plan import MemoryPlan
from sublet.plan.file import fingerprint, from_json, to_json
from sublet.planning.pipeline import plan_memory
from tests.support.interpreter import results_match
from tests.support.plan_truth import lies
from tests.support.programs import program
from tests.support.schedules import random_schedule
from tests.support.update_programs import exchanging

CHOSEN = """
  %which: i32[] = test.choose(%seed) {count = 2, low = 0}
  %x: u8[24] = case %which @first {
    arm @one {
      %p: u8[24] = test.matmul(%a, %seed)
      yield %p
    }
    arm @two {
      yield %a
    }
  }
  %last: u8[24] = while(%i: i64[]; %y: u8[24] = %x; ) @loop body @body {
    %go: bool[] = test.below(%i, %seed)
    continue if %go
    %kind: i32[] = test.choose(%y) {count = 2, low = 0}
    %z: u8[24] = case %kind @second {
      arm @keep {
        yield %y
      }
      arm @change {
        %m: u8[24] = test.matmul(%y)
        yield %m
      }
    }
    next %z;
  }
"""
"""A loop that may hand on, round after round, what a branch before it has chosen."""

JUMPING = f"""
graph @jumping(%a: u8[24], %seed: u8[4]) {{
{CHOSEN}  return %last
}}
"""
"""A loop that may hand on, round after round, what a branch before it has chosen: its copies follow by jumps."""


def judge_files(seed: int, folder: File, count: int = 40) -> Iterator[tuple[str, bool]]:
    """Change the plan of a program so many times: (the field, whether it was taken for true).

    Raises AssertionError for what is accepted and not true.
    """
    rng = random.Random(seed)
    graph, plan = _planned(rng)
    model = folder / "program.sublet"
    model.write_text(to_text(graph))
    assert not judge(model_of_plan(model, plan).graph, plan.schedule, plan).findings, f"seed {seed}"
    for name, text in changed_files(rng, to_json(plan), count):
        try:
            mutant = from_json(text)
            if rng.random() < 0.5:  # signed again by whoever changed it
                mutant = replace(mutant, fingerprint=fingerprint(graph, mutant.schedule))
            judged = judge(model_of_plan(model, mutant).graph, mutant.schedule, mutant)
        except SubletError:
            yield name, False
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}, {name}: {error!r}") from error
        yield name, not judged.findings
        if judged.findings:
            continue
        if "lower_bound_bytes" in judged.unproven:  # that is told, and so nobody is misled
            mutant = replace(mutant, lower_bound_bytes=min(mutant.lower_bound_bytes, plan.lower_bound_bytes))
        wrong = lies(graph, mutant, plan)
        assert not wrong, f"seed {seed}, {name}: accepted, and not true: {wrong}"
        right = results_match(graph, mutant.schedule, mutant, rng, 2)
        assert right, f"seed {seed}, {name}: accepted, and runs wrong"


def _planned(rng: random.Random) -> tuple[Graph, MemoryPlan]:
    """A program and a plan of it, of many kinds."""
    kind = rng.random()
    size = rng.choice([3, 6, 12, 20])
    graph = parse(JUMPING) if kind < 0.1 else exchanging(rng, size) if kind < 0.2 else program(rng, size)
    chosen = Options(
        strategy=rng.choice(["auto", "auto", "first_fit", "no_reuse"]),
        alignment=rng.choice([1, 4, 8, 64]),
        io=rng.choice(["arena", "arena", "bound"]),
        weights=rng.choice(["bound", "arena"]),
        in_place_from=rng.choice([0, 0, 8, 1 << 20]),
        share=rng.random() < 0.9,
        regions=rng.choice([(), (), (), (MemoryRegion("fast", 256, 1), MemoryRegion("slow", 1 << 20, 10))]),
    )
    if rng.random() < 0.2:
        return graph, plan_memory(graph, chosen, schedule=random_schedule(rng, graph, rng.choice([2, 3])))
    return graph, plan_memory(graph, chosen)


Path = tuple[str | int, ...]
Change = Callable[[random.Random, Any, list[Any]], Any]


def changed_files(rng: random.Random, text: str, count: int) -> Iterator[tuple[str, str]]:
    """So many mutants of a plan file: (the field, with numbers for positions left out, the text)."""
    whole = json.loads(text)
    fields: dict[str, list[Path]] = {}
    for path in _paths(whole, ()):
        fields.setdefault(_name(path), []).append(path)
    fields.pop("", None)
    for _ in range(count):
        name = rng.choice(sorted(fields))
        mutant = copy.deepcopy(whole)
        for _ in range(rng.choice((1, 1, 1, 2))):
            path = rng.choice(fields[name])
            _change(rng, mutant, path, [_at(whole, other) for other in fields[name]])
        if mutant != whole:
            yield name, json.dumps(mutant)


def _paths(node: Any, path: Path) -> Iterator[Path]:
    yield path
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _paths(value, (*path, key))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _paths(value, (*path, i))


def _name(path: Path) -> str:
    """The field of a path: positions in lists, and names of nodes, are all one."""
    steps = zip(("", *path), path, strict=False)
    return ".".join("*" if isinstance(step, int) or before == "bodies" else step for before, step in steps)


def _at(node: Any, path: Path) -> Any:
    for step in path:
        node = node[step]
    return node


def _change(rng: random.Random, whole: Any, path: Path, others: list[Any]) -> None:
    try:
        around, old = _at(whole, path[:-1]), _at(whole, path)
    except (KeyError, IndexError, TypeError):
        return  # an earlier change took it away
    for kind, change in CHANGES.items():
        if type(old) is kind:
            around[path[-1]] = change(rng, old, others)
            return


def _number(rng: random.Random, old: int, others: list[Any]) -> int:
    near = (old + 1, old - 1, old * 2, old // 2, 0, 1, -1, old + 64, max(0, old - 64), 1 << 40)
    return rng.choice([*near, *rng.sample(others, min(3, len(others)))])


def _string(rng: random.Random, old: str, others: list[Any]) -> str:
    return rng.choice([old + "x", "", "nobody", *KNOWN, *rng.sample(others, min(6, len(others)))])


def _list(rng: random.Random, old: list[Any], others: list[Any]) -> list[Any]:
    new = list(old)
    kind = rng.randrange(6)
    if kind == 0:
        rng.shuffle(new)
    elif kind == 1 and new:
        new.insert(rng.randrange(len(new) + 1), copy.deepcopy(rng.choice(new)))
    elif kind == 2 and len(new) > 1:
        i, j = rng.sample(range(len(new)), 2)
        new[i], new[j] = new[j], new[i]
    elif kind == 3:
        return copy.deepcopy(rng.choice(others))
    elif new:
        del new[rng.randrange(len(new))]
    return new


def _object(rng: random.Random, old: dict[str, Any], others: list[Any]) -> dict[str, Any]:
    """One field with that of another record of the same kind, or all."""
    other = rng.choice(others)
    if rng.random() < 0.3 or not old:
        return dict(copy.deepcopy(other))
    key = rng.choice(sorted(old))
    return {**old, key: copy.deepcopy(other.get(key, old[key]))}


KNOWN = ("own", "view", "part", "inplace", "carry", "slice", "row", "joined", "pointer", "peak", "antichain", "search",
         "arena", "weight", "input", "output", "timeout", "interrupt", "update")  # fmt: skip

CHANGES: dict[type, Change] = {
    bool: lambda rng, old, others: not old,
    int: _number,
    str: _string,
    list: _list,
    dict: _object,
}
