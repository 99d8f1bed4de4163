"""Plots of the result files in benchmarks/results, as SVG without a script, with tables of the same numbers.

mkdocs calls `plots_markdown` through docs/site_pages.py. Positions across are percentages and sizes of text pixels, so
that a plot is readable in every width; colours are those of the page, light or dark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
MARKER = "<!-- plots -->"
"""The place of the plots in docs/benchmarks.md."""
ROW_HEIGHT, BAR_HEIGHT = 26, 8
CURVE_HEIGHT, CURVE_LEFT, CURVE_RIGHT, CURVE_TOP, CURVE_BOTTOM = 260, 14.0, 96.0, 24, 220
"""Pixels down; percentages across."""


def plots_markdown(folder: Path = RESULTS) -> str:
    """Return the plots of all result files, or a sentence if there is none."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    if not results:
        return "This site was built without result files."
    return "\n\n".join(part for result in results for part in result_parts(result))


def result_parts(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the heading, the figures and the table of a result file."""
    name, peers = result["name"], [peer.strip() for peer in result["peer"].split(",")]
    yield f"### {result['title']} {{ #plots-{name} }}"
    by_unit: dict[str, list[Row]] = {}
    for row in result["rows"]:
        by_unit.setdefault(row["unit"], []).append(row)
    for number, (unit, rows) in enumerate(by_unit.items()):
        if "at" in rows[0]:
            for i, (case, points) in enumerate(groupby(rows, key=lambda row: row["case"])):
                yield figure(curve_svg(f"{name}-{number}-{i}", case, list(points)), f"{case}: time as a share {unit}.")
        elif ratios := list(ratio_rows(rows, peers)):
            peer = next(peer for peer in peers if any(row["series"] == peer for row in rows))
            what = f"as a share {unit}" if unit.startswith("of ") else f"{unit}, divided by those of {peer}"
            yield figure(bars_svg(f"{name}-{number}", f"{result['title']}: {what}", ratios), f"{what}. Less is better.")
    yield caption(result)
    yield table(result["rows"])


def ratio_rows(rows: Sequence[Row], peers: Sequence[str]) -> Iterator[Row]:
    """Yield the rows divided by the row of the peer in the same case; a case without a peer has no ratios."""
    for _, group in groupby(rows, key=lambda row: row["case"]):
        sides = list(group)
        bases = [row["value"] for peer in peers for row in sides if row["series"] == peer]
        if bases and bases[0]:
            yield from ({**row, **{key: row[key] / bases[0] for key in ("value", "low", "high")}} for row in sides)


def range_words(row: Row) -> str:
    """Return the value, with the range if the value varies."""
    words = short(row["value"])
    return words if row["low"] == row["high"] else f"{words} ({short(row['low'])} to {short(row['high'])})"


def short(number: float) -> str:
    """Return a number of bytes in full, and other numbers with three digits."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def svg(name: str, title: str, text: str, height: int, shapes: Iterable[str]) -> str:
    """Return an SVG element of the full width, with title and description for screen readers."""
    head = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(text)}</desc>'
    label = f'role="img" aria-labelledby="{name}-title {name}-desc"'
    return f'<svg class="plot" width="100%" height="{height}" {label}>{head}{"".join(shapes)}</svg>'


def bars_svg(name: str, title: str, rows: Sequence[Row]) -> str:
    """Return horizontal bars, grouped by case, with a line across the bars at 1 and a thin line for each range."""
    scale, y, shapes = 100 / max(1.05, *(row["high"] for row in rows)), 0, []
    for case, group in groupby(rows, key=lambda row: row["case"]):
        shapes.append(f'<text class="case" x="0" y="{y + 18}">{escape(case)}</text>')
        top, y = y + 24, y + 24
        for row in group:
            kind, middle = "ours" if row["series"].startswith("Sublet") else "peer", y + 15 + BAR_HEIGHT / 2
            shapes.append(f'<text x="0" y="{y + 11}">{escape(row["series"])}: {range_words(row)}</text>')
            width = f'width="{row["value"] * scale:.2f}%" height="{BAR_HEIGHT}"'
            shapes.append(f'<rect class="{kind}" x="0" y="{y + 15}" {width}/>')
            if row["low"] != row["high"]:
                ends = f'x1="{row["low"] * scale:.2f}%" x2="{row["high"] * scale:.2f}%"'
                shapes.append(f'<line class="range" {ends} y1="{middle}" y2="{middle}"/>')
            y += ROW_HEIGHT
        shapes.append(f'<line class="one" x1="{scale:.2f}%" x2="{scale:.2f}%" y1="{top}" y2="{y}"/>')
        y += 8
    text = "Horizontal bars from 0; the dashed line marks 1. The table below has all numbers."
    return svg(name, title, text, y, shapes)


def curve_svg(name: str, title: str, rows: Sequence[Row]) -> str:
    """Return curves of values by megabytes, a step down at each point: a program fits all larger budgets too."""
    most, top = max(row["at"] for row in rows), max(row["value"] for row in rows)
    low = min(row["value"] for row in rows)
    shapes = [
        f'<line class="axis" x1="{CURVE_LEFT}%" x2="{CURVE_RIGHT}%" y1="{CURVE_BOTTOM}" y2="{CURVE_BOTTOM}"/>',
        f'<text x="{CURVE_RIGHT}%" y="{CURVE_BOTTOM + 32}" text-anchor="end">MB of the arena</text>',
    ]

    def across(at: float) -> float:
        return CURVE_LEFT + (CURVE_RIGHT - CURVE_LEFT) * at / most

    def down(value: float) -> float:
        return CURVE_BOTTOM - (CURVE_BOTTOM - CURVE_TOP) * (value - low) / (top - low or 1)

    for value in (low, top):
        shapes.append(f'<text x="0" y="{down(value) + 4:.1f}">{short(value)}</text>')
    for share in (0.25, 0.5, 0.75, 1.0):
        at = f'x="{across(share * most):.2f}%" y="{CURVE_BOTTOM + 16}" text-anchor="middle"'
        shapes.append(f"<text {at}>{share * most / 1e6:,.0f}</text>")
    for number, series in enumerate(dict.fromkeys(row["series"] for row in rows)):
        kind = "ours" if series.startswith("Sublet") else "peer"
        points = sorted((row["at"], row["value"]) for row in rows if row["series"] == series)
        legend = f'x="{CURVE_LEFT + 36 * number}%" y="12"'
        shapes.append(f'<text class="{kind}" {legend}>{"●" if kind == "ours" else "○"} {escape(series)}</text>')
        for (x1, y1), (x2, y2) in pairwise(points):
            flat = f'x1="{across(x1):.2f}%" x2="{across(x2):.2f}%" y1="{down(y1):.1f}" y2="{down(y1):.1f}"'
            fall = f'x1="{across(x2):.2f}%" x2="{across(x2):.2f}%" y1="{down(y1):.1f}" y2="{down(y2):.1f}"'
            shapes.append(f'<line class="{kind}" {flat}/><line class="{kind}" {fall}/>')
        for at, value in points:
            words = f"<title>{escape(series)}: {at:,} bytes, {short(value)}</title>"
            place = f'cx="{across(at):.2f}%" cy="{down(value):.1f}" r="4"'
            shapes.append(f'<circle class="{kind}" {place}>{words}</circle>')
    text = "Curves of time by megabytes; less is better in both. The table below has all numbers."
    return svg(name, title, text, CURVE_HEIGHT, shapes)


def figure(drawn: str, text: str) -> str:
    """Return a plot with a caption, as a block of HTML."""
    return f'<figure class="plot">{drawn}<figcaption>{escape(text[0].upper() + text[1:])}</figcaption></figure>'


def caption(result: Mapping[str, Any]) -> str:
    """Return what was measured, by which command, on which machine, with which versions."""
    machine, versions = result["machine"], ", ".join(f"{name} {found}" for name, found in result["versions"].items())
    load = "" if machine["load"] is None else f", load average {machine['load']} at the start"
    quick = " **This was a quick run, of few cases and rounds.**" if result["quick"] else ""
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB{load}"
    return f"{result['about']}{quick} `{result['command']}` on {where}; {versions}."


def table(rows: Sequence[Row]) -> str:
    """Return all numbers as a table that opens on request."""
    heads = ("case", "series", "value", "least", "most", "unit", *(("arena bytes",) if "at" in rows[0] else ()))
    lines = ["".join(f'<th scope="col">{head}</th>' for head in heads)]
    for row in rows:
        numbers = [short(row[key]) for key in ("value", "low", "high")]
        cells = [row["case"], row["series"], *numbers, row["unit"], *([f"{row['at']:,}"] if "at" in row else [])]
        lines.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    body = "".join(f"<tr>{line}</tr>" for line in lines[1:])
    head = f"<thead><tr>{lines[0]}</tr></thead>"
    return f"<details><summary>All numbers</summary><table>{head}<tbody>{body}</tbody></table></details>"
