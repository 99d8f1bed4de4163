"""Regenerates `src/sublet/integrations/paddle/operators/facts.json` by experiment against installed versions of Paddle.

    python -m benchmarks.paddle.facts --python PATH [--python PATH ...] PROGRAM...
    python -m benchmarks.paddle.facts --rows FILE [--rows FILE ...]

PATH is the Python of an environment with a paddlepaddle; the ops tried are those of the programs, as they stand there
and in other extents (`variants.py`). What is written held in every use of the op, of three different ones at least, in
every version that could run it. A use that Paddle refuses by itself tells nothing. What each version found stays in
`build/facts`, a file a version, from which `--rows` merges again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sublet.integrations.paddle.operators.dialect import FACTS

ENOUGH = 3
"""Different uses in which something must have held: what is right in fewer may be right by chance."""

BY_NAME, BY_PLACE, BITS = 3, 4, 5
"""Where in a tried pair it says whether that was right by one name, at one place, and whether the bits are the same."""

TRIALS = Path(__file__).with_name("trials.py")
ROWS = Path("build/facts")
Row = dict[str, Any]
Ends = tuple[str, str]


def tried(python: str, number: int, programs: list[str], resume: bool) -> Path:
    """A file with what one version's Paddle does in each use of an op, a line of JSON a use."""
    found = ROWS / f"{number}.jsonl"
    before = found.read_text(encoding="utf-8").splitlines() if resume and found.exists() else []
    last = json.loads(before[-1])["op"] if before else ""
    whole = [line for line in before if json.loads(line)["op"] != last]  # it may have been interrupted in the last
    done = sorted({json.loads(line)["op"] for line in whole})
    found.write_text("".join(f"{line}\n" for line in whole), encoding="utf-8")
    with found.open("a", encoding="utf-8") as file:
        subprocess.run([python, str(TRIALS), ",".join(done), *programs], stdout=file, check=True)
    return found


def rows_of(found: Path) -> tuple[str, dict[str, list[Row]]]:
    """The version, and the rows of every op it tried; says why others have none."""
    lines = [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    rows: dict[str, list[Row]] = {}
    for line in lines:
        if "error" not in line:
            rows.setdefault(line["op"], []).append(line)
    version = lines[0]["version"]
    print(f"{version}: {sum(map(len, rows.values()))} uses of {len(rows)} ops tried")
    for name, why in sorted({line["op"]: line["error"] for line in lines if "error" in line}.items()):
        if name not in rows:
            print(f"  {name}: {why}")
    return version, rows


class Pairs:
    """What was seen of pairs of an input's and an output's slot: by which use, and whether it was right."""

    def __init__(self, rows: list[Row], at: int, wanted: Callable[[Row], bool] = lambda pair: True) -> None:
        self.seen: dict[Ends, list[tuple[bool, Row]]] = {}
        for row in rows:
            for pair in row["inplace"]:
                if pair[at] is not None and wanted(pair):
                    self.seen.setdefault((pair[0], pair[2]), []).append((pair[at], row))

    def right(self) -> list[Ends]:
        """Pairs that were right in all uses, and in enough of them."""
        return sorted(
            ends
            for ends, seen in self.seen.items()
            if all(good for good, _ in seen) and len({row["use"] for _, row in seen}) >= ENOUGH
        )

    def by_chance(self) -> dict[Ends, str]:
        """Pairs that were right in some uses and wrong in others, with one of those."""
        return {
            ends: next(f"{row['use']} ({row['version']})" for good, row in seen if not good)
            for ends, seen in self.seen.items()
            if len({good for good, _ in seen}) > 1
        }


def facts_of(rows: list[Row]) -> Row | None:
    """What holds in all uses of an op, in all versions; None where there are none, or outputs elsewhere are wrong."""
    if not rows:
        return None
    whole = max(len(row["outputs"]) for row in rows)
    full = [row for row in rows if len(row["outputs"]) == whole]  # without some gradient, less is read
    arenas = [row["arena"] for row in rows if row["arena"] is not None]
    if not all(elsewhere for _, elsewhere, _ in arenas):
        return None
    named, placed = Pairs(rows, BY_NAME), Pairs(rows, BY_PLACE)
    by_name, by_place = named.right(), placed.right()
    first_named, first_placed = (Pairs(rows, how, lambda pair: pair[1] == 0).right() for how in (BY_NAME, BY_PLACE))
    told: Row = {
        "inplace": by_name,
        "inplace_first": [ends for ends in first_named if ends not in by_name],
        "placed": by_place,
        "placed_first": [ends for ends in first_placed if ends not in by_place],
        "equal": Pairs(rows, BITS).right(),
        "holder": not all(good for good, _, _ in arenas),
        "shape_only": unread(full),
        "moves": sorted({slot for _, _, moved in arenas for slot in moved}),
        "shares": sorted({tuple(ends) for row in rows for ends in row["shares"]}),
        "refuted": [
            (how, *ends, where)
            for how, pairs in (("inplace", named), ("placed", placed))
            for ends, where in sorted(pairs.by_chance().items())
        ],
    }
    return {name: value for name, value in told.items() if value or name in ("inplace", "holder", "shape_only")}


def unread(rows: list[Row]) -> list[str]:
    """Slots whose content made no difference in any use, of enough uses."""
    seen: dict[str, list[bool]] = {}
    for row in rows:
        for slot, not_read in row["shape_only"]:
            seen.setdefault(slot, []).append(not_read)
    return sorted(slot for slot, answers in seen.items() if all(answers) and len(answers) >= ENOUGH)


def write(versions: dict[str, dict[str, list[Row]]]) -> None:
    """What holds in all versions, an op a line."""
    lines = []
    for name in sorted({name for rows in versions.values() for name in rows}):
        every = [row for rows in versions.values() for row in rows.get(name, ())]
        told = facts_of([row for row in every if row["plain"]])
        if told is None:
            print(f"  {name}: left alone")
            continue
        other = facts_of([row for row in every if not row["plain"]])
        if other is not None and other != told:
            told["otherwise"] = other
        where = [version for version, rows in versions.items() if name in rows]
        if len(where) < len(versions):
            told["versions"] = where
        lines.append(f"    {json.dumps(name)}: {json.dumps(told)}")
    text = "{\n" + f'  "versions": {json.dumps(list(versions))},\n  "ops": {{\n' + ",\n".join(lines) + "\n  }\n}\n"
    FACTS.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], help="an interpreter that has paddlepaddle")
    parser.add_argument("--rows", action="append", default=[], type=Path, help="what a version found before")
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run found")
    parser.add_argument("programs", nargs="*", help="serialised programs whose ops are tried")
    given = parser.parse_args()
    if not (given.python and given.programs) and not given.rows:
        parser.error("needs --python PATH and programs, or --rows FILE")
    write(dict(map(rows_of, given.rows or in_all(given.python, given.programs, given.resume))))


def in_all(pythons: list[str], programs: list[str], resume: bool) -> Iterable[Path]:
    """Versions are tried beside each other."""
    ROWS.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(len(pythons)) as pool:
        yield from pool.map(lambda at: tried(pythons[at], at, programs, resume), range(len(pythons)))


if __name__ == "__main__":
    main()
