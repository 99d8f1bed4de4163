"""Regenerates `src/sublet/frontends/paddle/operators/facts.json` by experiment against installed versions of Paddle.

    python -m benchmarks.paddle.facts --python PATH [--python PATH ...] PROGRAM...

PATH is the Python of an environment with a paddlepaddle; the ops tried are those of the programs. What is written
held in every use of the op, in every version that could run it. A use that Paddle refuses by itself tells nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from sublet.frontends.paddle.operators.facts import FACTS

REFUTED = {
    "depthwise_conv2d": "wrong in place for kernels of 1 x 1, and where channels multiply",
    "mul": "wrong in place for matrices of 100 x 100 and 700 x 700, right for 300 x 300",
}
"""Ops that may not be done in place, although every use of them in the given programs is right by chance."""

DROPPING = {"dropout"}
"""Ops that copy only as inference does: the given programs use them so."""

TRIALS = Path(__file__).with_name("trials.py")
Row = dict[str, Any]


def tried(python: str, programs: list[str]) -> tuple[str, dict[str, list[Row]], dict[str, str]]:
    """The version of an interpreter's Paddle, the rows of every op it tried, and why others have none."""
    done = subprocess.run([python, str(TRIALS), *programs], stdout=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    rows: dict[str, list[Row]] = {}
    for line in lines:
        if "error" not in line:
            rows.setdefault(line["op"], []).append(line)
    return lines[0]["version"], rows, {r["op"]: r["error"] for r in lines if "error" in r and r["op"] not in rows}


def facts_of(rows: list[Row]) -> Row | None:
    """What holds in all uses of an op, in all versions; None where there are none, or outputs elsewhere are wrong."""
    if not rows:
        return None
    whole = max(len(row["outputs"]) for row in rows)
    full = [row for row in rows if len(row["outputs"]) == whole]  # without some gradient, less is read
    arenas = [row["arena"] for row in rows if row["arena"] is not None]
    if not all(elsewhere for _, elsewhere, _ in arenas):
        return None
    pairs = [pair for row in rows for pair in row["inplace"]]

    def safe(how: int, *, first: bool = False) -> list[list[str]]:
        told = [p for p in pairs if p[how] is not None and not (first and p[1])]
        return sorted(
            [list(ends) for ends in {(p[0], p[2]) for p in told} if all(p[how] for p in told if (p[0], p[2]) == ends)]
        )

    by_name, by_place = safe(3), safe(4)
    slots = {slot for row in full for slot, _ in row["shape_only"]}
    told: Row = {
        "inplace": by_name,
        "inplace_first": [ends for ends in safe(3, first=True) if ends not in by_name],
        "placed": by_place,
        "placed_first": [ends for ends in safe(4, first=True) if ends not in by_place],
        "equal": safe(5),
        "holder": not all(good for good, _, _ in arenas),
        "shape_only": sorted(
            s for s in slots if all(unread for row in full for slot, unread in row["shape_only"] if slot == s)
        ),
        "moves": sorted({slot for _, _, moved in arenas for slot in moved}),
        "shares": sorted({tuple(ends) for row in rows for ends in row["shares"]}),
    }
    return {name: value for name, value in told.items() if value or name in ("inplace", "holder", "shape_only")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", required=True, help="an interpreter that has paddlepaddle")
    parser.add_argument("programs", nargs="+", help="serialised programs whose ops are tried")
    given = parser.parse_args()
    write(dict(report(python, given.programs) for python in given.python))


def report(python: str, programs: list[str]) -> tuple[str, dict[str, list[Row]]]:
    version, rows, untold = tried(python, programs)
    print(f"{version}: {sum(map(len, rows.values()))} uses of {len(rows)} ops tried")
    for name, why in sorted(untold.items()):
        print(f"  {name}: {why}")
    return version, rows


def write(versions: dict[str, dict[str, list[Row]]]) -> None:
    """What holds in all versions, an op a line."""
    lines = []
    for name in sorted({name for rows in versions.values() for name in rows}):
        every = [row for rows in versions.values() for row in rows.get(name, ())]
        told = facts_of([row for row in every if row["plain"]])
        if told is None:
            print(f"  {name}: left alone")
            continue
        if name in REFUTED:
            told = {**told, "inplace": []}
            for how in ("inplace_first", "placed", "placed_first"):
                told.pop(how, None)
        if name in DROPPING:
            told.pop("equal", None)
        other = facts_of([row for row in every if not row["plain"]])
        if other is not None and other != told:
            told["broadcast"] = other
        where = [version for version, rows in versions.items() if name in rows]
        if len(where) < len(versions):
            told["versions"] = where
        lines.append(f"    {json.dumps(name)}: {json.dumps(told)}")
    text = "{\n" + f'  "versions": {json.dumps(list(versions))},\n  "ops": {{\n' + ",\n".join(lines) + "\n  }\n}\n"
    FACTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
