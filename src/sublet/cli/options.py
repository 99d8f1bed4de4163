"""The options of the commands, each declared once, and what their texts say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, get_args

import typer

from sublet.api.sources import Optimize
from sublet.base.bytesize import parse_bytes
from sublet.base.errors import ModelError, PlanError, ProblemError
from sublet.frontends.model import is_paddle, is_tflite
from sublet.frontends.tflite.model import ALIGNMENT as TFLM_ALIGNMENT
from sublet.packing import STRATEGIES, Region
from sublet.plan import MemoryPlan
from sublet.plan.verdict import Verdict, verdict

DEARER = 10
"""How many times the cost of the region before, when no costs are told."""

RATE = "/s"

Model = Annotated[
    Path,
    typer.Argument(
        help="A model: .onnx, .tflite, PyTorch's .pt2, Paddle's .pdmodel or .json, or a graph in text form (.sublet).",
        show_default=False,
    ),
]
Dim = Annotated[
    list[str] | None, typer.Option("--dim", metavar="NAME=V", help="Bind a symbolic dimension; repeat for more.")
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="NAME=D,D,..", help="The extents of a variable of a Paddle program; repeat for more."
    ),
]
MaxTrips = Annotated[
    list[str] | None,
    typer.Option(
        "--max-trips",
        metavar="[LOOP=]N",
        help="Loops make at most N rounds, or one of them does: what they stack is planned. Repeat for more.",
    ),
]
Strategy = Annotated[str, typer.Option(help=f"auto, or one of {', '.join(STRATEGIES)}.", metavar="S")]
Html = Annotated[Path | None, typer.Option("--html", help="Write the picture as one self-contained page.")]
Png = Annotated[Path | None, typer.Option("--png", help="Write the picture as PNG or SVG (extra: png).")]
RegionTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--region",
        metavar="NAME=BYTES[@COST]",
        help="A memory, such as sram=512KiB@1, with what accessing a byte costs (if left out: 1, 10, ...), or "
        "host=8GiB@10GB/s: --recompute may bring values there; repeat.",
    ),
]
Timeout = Annotated[float | None, typer.Option(help="Stop searching after this many seconds.", metavar="SECONDS")]
Optimizer = Annotated[
    str, typer.Option("--optimize", metavar="O", help=f"Who rewrites a model first: {', '.join(get_args(Optimize))}.")
]
Budget = Annotated[
    str | None,
    typer.Option(metavar="BYTES", help="Exit 1 if more is needed, 3 if nobody can tell: 256K, 1.5MB."),
]
MaxDim = Annotated[
    list[str] | None,
    typer.Option(
        "--max-dim",
        metavar="[VALUE=]N",
        help="With --budget: no unknown extent of the values outside the plan is above N. Repeat for more.",
    ),
]
Assume = Annotated[
    list[str] | None,
    typer.Option(
        "--assume",
        metavar="NAME=SHAPE",
        help="Take a value of unknown shape to be f32[1,8], or [1,8] if only the shape is unknown. Repeat for more.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")]


Patches = Annotated[
    str | None,
    typer.Option(
        "--patches",
        metavar="RxC@NODE",
        help="Compute the front, up to a node, in patches of rows and columns; auto takes those that need least.",
    ),
]


class Order(StrEnum):
    """In which order the nodes of a model run."""

    given = "given"
    less = "less"
    least = "least"


Orders = Annotated[
    Order,
    typer.Option("--order", help="The model's own order, one that needs less memory, or the least (OR-Tools)."),
]


class Question:
    """What a plan is held against: `--budget`, and what `--max-dim` says of values outside the plan."""

    def __init__(self, budget: str | None, max_dim: list[str] | None) -> None:
        self.budget = None if budget is None else parse_bytes(budget)
        self.largest = _maxima(max_dim, "--max-dim", "VALUE", "value outside the plan")
        if self.largest and self.budget is None:
            raise PlanError("--max-dim bounds what a budget is held against: add --budget BYTES, or drop it")

    def answer(self, plan: MemoryPlan) -> Verdict | None:
        """The verdict; None when nothing was asked."""
        return None if self.budget is None else verdict(plan, self.budget, self.largest)


Align = Annotated[
    int | None, typer.Option(help="Every tensor's offset is a multiple of this many bytes: 64, of a .tflite 16.")
]
ALIGNMENT = 64
"""Bytes of a line of a cache, for models that say nothing else."""


def alignment_of(model: Path, told: int | None) -> int:
    """What every offset is a multiple of: as told, or what runs such models wants."""
    return told if told is not None else TFLM_ALIGNMENT if is_tflite(model) else ALIGNMENT


def bound_dims(texts: list[str] | None) -> dict[str, int]:
    """`["batch=1"]` as a dict. Raises ModelError for anything else."""
    told = _by_name(texts, "--dim", r".+=\s*[+-]?[0-9]{1,20}\s*", "NAME=INTEGER", "batch=1")
    return {name: int(text) for name, text in told.items()}


def bound_extents(model: Path, shapes: list[str] | None, dims: dict[str, int]) -> dict[str, int]:
    """`dims` with the extents in `["x=1,3,640,640"]` as `x.0` and so on. Raises ModelError for anything else."""
    told = _by_name(shapes, "--shape", r".+=\s*([0-9]{1,18}\s*(,\s*[0-9]{1,18}\s*)*)?", "NAME=D,D,..", "x=1,3,640,640")
    if told and not is_paddle(model):
        raise ModelError(
            f"--shape is for Paddle programs, whose open extents have no names: bind those of {model} by --dim"
        )
    found = {f"{name}.{axis}": int(text) for name, said in told.items() for axis, text in enumerate(said.split(","))}
    twice = next((name for name in found if name in dims), None)
    if twice is not None:
        raise ModelError(f"--dim {twice} and --shape {twice.rpartition('.')[0]} tell the same extent: drop one")
    return {**dims, **found}


def told_shapes(texts: list[str] | None) -> dict[str, str]:
    """`["a=f32[1,8]"]` as a dict. Raises ModelError for anything else."""
    return _by_name(texts, "--assume", r".+=[^=]+", "NAME=SHAPE", "a=f32[1,8]")


def bound_trips(texts: list[str] | None) -> dict[str, int]:
    """`["8", "loop=9"]` as a dict; "" stands for every loop. Raises ModelError for anything else."""
    return _maxima(texts, "--max-trips", "LOOP", "loop")


def _maxima(texts: list[str] | None, option: str, named: str, every: str) -> dict[str, int]:
    told = _by_name(texts, option, r"(.+=)?\s*[0-9]{1,18}\s*", f"N or {named}=N", "100", f"for every {every}")
    return {name: int(text) for name, text in told.items()}


def _by_name(
    texts: list[str] | None, option: str, pattern: str, form: str, example: str, unnamed: str = ""
) -> dict[str, str]:
    """What an option that may be repeated says of each name: what is behind the last "="."""
    told: dict[str, str] = {}
    for text in texts or ():
        if not re.fullmatch(pattern, text, re.DOTALL):
            raise ModelError(f"{option} {text[:80]}: write {form}, for instance {option} {example}")
        name, _, said = text.rpartition("=")
        if name in told:
            raise ModelError(f"{option} {name or unnamed} is given twice")
        told[name] = said
    return told


def parse_regions(texts: Sequence[str]) -> tuple[Region, ...]:
    """Regions written "sram=512KiB@1": a name, a capacity, and the cost of reading or writing one byte.

    With "@10GB/s" instead a region is read and written by transfers alone, at that rate. Without any costs the regions
    come cheapest first, and cost 1, 10, 100, ... Raises ProblemError or SubletError naming what is wrong.
    """
    regions = []
    told = [text for text in texts if "@" in text and not text.endswith(RATE)]
    for position, text in enumerate(texts):
        name, equals, rest = text.partition("=")
        size, at, cost = rest.partition("@")
        if equals and at and cost.endswith(RATE):
            rate = parse_bytes(cost.removesuffix(RATE))
            if not rate:
                raise ProblemError(f"region {text[:80]!r}: nothing is brought there at 0 bytes a second")
            regions.append(Region(name.strip(), parse_bytes(size), rate=rate))
            continue
        if not equals or (at and not (cost.isascii() and cost.isdigit() and len(cost) <= 30)):
            raise ProblemError(f"region {text[:80]!r}: write NAME=BYTES or NAME=BYTES@COST, such as sram=512KiB@1")
        if told and not at:
            raise ProblemError(f"region {text[:80]!r}: give every region a cost (@COST), or none")
        regions.append(Region(name.strip(), parse_bytes(size), int(cost) if at else DEARER**position))
    return tuple(regions)
