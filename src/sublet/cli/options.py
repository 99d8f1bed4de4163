"""The options of the commands, each declared once, and the parsers of their texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer

from sublet.api.model_files import default_alignment, has_option
from sublet.api.sources import Optimize
from sublet.api.state_names import AUTO_STATE, StatePairs
from sublet.base.boxes import RANGE
from sublet.base.errors import ModelError, PlanError, ProblemError
from sublet.base.formatting import parse_bytes
from sublet.cli.console import reporting_errors
from sublet.packing import STRATEGIES, MemoryRegion
from sublet.plan import MemoryPlan
from sublet.plan.verdict import Verdict, verdict

# Commands from option records: each field of a frozen record is one argument or option of the command line.

Record = TypeVar("Record")


def command_from(record: type[Record]) -> Callable[[Callable[[Record], None]], Callable[..., None]]:
    """Decorate the function of a command, a function of one `record`: return the command with an option a field.

    Typer reads the signature of the command. Names, types, helps and defaults of the options are those of the fields,
    in the order of the fields. The command reports errors of the function; the field `in_json` selects JSON.
    """

    def make_command(function: Callable[[Record], None]) -> Callable[..., None]:
        @wraps(function)
        def run_command(**values: Any) -> None:
            with reporting_errors(in_json=bool(values.get("in_json"))):
                function(record(**values))

        run_command.__signature__ = signature(record, eval_str=True)  # type: ignore[attr-defined]
        return run_command

    return make_command


COST_FACTOR = 10
"""Factor between the costs of successive regions if no costs are given."""

RATE_SUFFIX = "/s"

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
RangedDim = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=V",
        help="Bind a symbolic dimension to an extent, to a range (1..512, 64..960:32) for one plan of every shape, "
        "or to an equal dimension; repeat for more.",
    ),
]
Const = Annotated[
    list[str] | None,
    typer.Option(
        "--const",
        metavar="NAME=V[,V..]",
        help="Fix an input of an ONNX model to numbers (sr=16000), or leave a default in the file open (w=open); "
        "repeat for more.",
    ),
]
State = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="INPUT=OUTPUT|auto",
        help="Update an input by an output from run to run (h=hn), starting from zeros; repeat for more. With auto: "
        "all pairs by name (h and hn, past and present).",
    ),
]
TierTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--tiers",
        metavar="NAME=N[,N..]",
        help="Upper ends within a range (seq=64,128): also plan each smaller range, for requests that it holds.",
    ),
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
        help="Maximum iterations of all loops, or of one LOOP, to plan stacked outputs. Repeat for more.",
    ),
]
Strategy = Annotated[str, typer.Option(help=f"auto, or one of {', '.join(STRATEGIES)}.", metavar="S")]
Html = Annotated[Path | None, typer.Option("--html", help="Write the picture as one self-contained HTML page.")]
Png = Annotated[Path | None, typer.Option("--png", help="Write the picture as PNG or SVG (extra: png).")]
RegionTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--region",
        metavar="NAME=BYTES[@COST]",
        help="A memory region with its cost of an access to one byte (default: 1, 10, ...), such as sram=512KiB@1; "
        "or with a transfer rate, host=8GiB@10GB/s, for values offloaded by --recompute. Repeat for more.",
    ),
]
Timeout = Annotated[float | None, typer.Option(help="Stop searching after this many seconds.", metavar="SECONDS")]
Optimizer = Annotated[
    str, typer.Option("--optimize", metavar="O", help=f"Rewrite the model first: {', '.join(get_args(Optimize))}.")
]
Budget = Annotated[
    str | None,
    typer.Option(metavar="BYTES", help="Memory budget (256K, 1.5MB): exit 1 if more is needed, 3 if unknown."),
]
MaxDim = Annotated[
    list[str] | None,
    typer.Option(
        "--max-dim",
        metavar="[VALUE=]N",
        help="With --budget: maximum of the unknown extents of values outside the plan. Repeat for more.",
    ),
]
Assume = Annotated[
    list[str] | None,
    typer.Option(
        "--assume",
        metavar="NAME=SHAPE",
        help="Assume f32[1,8] for a value of unknown shape, or [1,8] if only the shape is unknown. Repeat for more.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


Patches = Annotated[
    str | None,
    typer.Option(
        "--patches",
        metavar="RxC@NODE",
        help="Compute the front of the network, up to NODE, in R x C patches; auto selects node and patches.",
    ),
]


class StorageOption(StrEnum):
    """The storage of inputs, outputs and weights: the arena, or memory bound by the caller."""

    arena = "arena"
    bound = "bound"


class Kernels(StrEnum):
    """The kernels of a compiled training step."""

    sublet = "sublet"
    inductor = "inductor"


class Step(StrEnum):
    """Sublet's ways to run a training step of PyTorch: a call of `torch.compile`, or a step of `train_step`."""

    compile = "compile"
    train_step = "train_step"


class Order(StrEnum):
    """The execution orders of the nodes of a model."""

    given = "given"
    less = "less"
    least = "least"


Orders = Annotated[
    Order,
    typer.Option(
        "--order", help="Execution order: the model's own, one with less memory, or one with the least (OR-Tools)."
    ),
]


class BudgetQuestion:
    """A memory budget, with maximum extents for values outside the plan: the options `--budget` and `--max-dim`.

    Raises PlanError for `--max-dim` without a budget, and SubletError for a text that cannot be parsed.
    """

    def __init__(self, budget: str | None, max_dim: list[str] | None) -> None:
        self.budget = None if budget is None else parse_bytes(budget)
        self.max_extents = _parse_maxima(max_dim, "--max-dim", "VALUE", "value outside the plan")
        if self.max_extents and self.budget is None:
            raise PlanError("--max-dim is for --budget: add --budget BYTES, or drop --max-dim")

    def verdict_on(self, plan: MemoryPlan) -> Verdict | None:
        """Return the verdict on a plan; None without a budget."""
        return None if self.budget is None else verdict(plan, self.budget, self.max_extents)


Align = Annotated[int | None, typer.Option(help="Alignment of all offsets in bytes; 64 by default, 16 for a .tflite.")]


def option_name(field_name: str) -> str:
    """Return the option of a field of an option record, such as "--max-trips"."""
    return f"--{field_name.replace('_', '-')}"


def choose_alignment(model: Path, alignment: int | None) -> int:
    """Return the alignment of offsets in bytes: `alignment`, or by default 16 for a .tflite model and 64 for others."""
    if alignment is not None:
        return alignment
    return default_alignment(model)


INTEGER = r"\s*[+-]?[0-9]{1,20}\s*"


def parse_dims(texts: list[str] | None) -> dict[str, int]:
    """Return `["batch=1"]` as a dict of dimensions. Raises ModelError for a text of another form, and for a range."""
    ranged = next((text for text in texts or () if RANGE.fullmatch(text.rpartition("=")[2])), None)
    if ranged is not None:
        raise ModelError(f"--dim {ranged[:80]}: only `sublet plan` takes ranges; pass one extent, NAME=INTEGER")
    texts_by_name = _parse_repeated(texts, "--dim", rf".+={INTEGER}", "NAME=INTEGER", "batch=1")
    return {name: int(text) for name, text in texts_by_name.items()}


def parse_ranged_dims(texts: list[str] | None) -> dict[str, Any]:
    """Return `["batch=1", "seq=1..512", "n=batch"]` as a dict of extents, and texts of ranges and of equal dimensions.

    Raises ModelError for a text of another form.
    """
    form, example = "NAME=INTEGER, NAME=LOW..HIGH, NAME=LOW..HIGH:STEP or NAME=DIMENSION", "seq=1..512"
    texts_by_name = _parse_repeated(texts, "--dim", r".+=[^=]+", form, example)
    return {name: int(text) if re.fullmatch(INTEGER, text) else text for name, text in texts_by_name.items()}


def parse_tier_ends(texts: list[str] | None) -> dict[str, list[int]]:
    """Return `["seq=64,128"]` as upper ends by dimension. Raises ModelError for a text of another form."""
    texts_by_name = _parse_repeated(texts, "--tiers", rf".+={INTEGER}(,{INTEGER})*", "NAME=INTEGER,..", "seq=64,128")
    return {name: [int(each) for each in text.split(",")] for name, text in texts_by_name.items()}


def parse_constants(texts: list[str] | None) -> dict[str, str]:
    """Return `["sr=16000"]` as a dict of constants by input. Raises ModelError for a text of another form."""
    return _parse_repeated(texts, "--const", r".+=[^=]+", "NAME=NUMBER", "sr=16000")


def parse_state(texts: list[str] | None) -> StatePairs:
    """Return `["h=hn"]` as a dict of outputs by input, and `["auto"]` as "auto". Raises ModelError for other texts."""
    if texts == [AUTO_STATE]:
        return AUTO_STATE
    return _parse_repeated(texts, "--state", r".+=[^=]+", "INPUT=OUTPUT", "h=hn")


def parse_extents(model: Path, shapes: list[str] | None, dims: dict[str, int]) -> dict[str, int]:
    """Return `dims` plus the extents of `--shape`: `["x=1,640"]` adds `x.0` = 1 and `x.1` = 640.

    Raises ModelError for a text of another form, for a model not of Paddle, and for an extent given twice.
    """
    texts_by_name = _parse_repeated(
        shapes, "--shape", r".+=\s*([0-9]{1,18}\s*(,\s*[0-9]{1,18}\s*)*)?", "NAME=D,D,..", "x=1,3,640,640"
    )
    if texts_by_name and not has_option(model, "shape"):
        raise ModelError(f"--shape is for Paddle programs, whose open extents have no names: use --dim for {model}")
    bindings = {
        f"{name}.{axis}": int(text)
        for name, extents in texts_by_name.items()
        for axis, text in enumerate(extents.split(","))
    }
    duplicate = next((name for name in bindings if name in dims), None)
    if duplicate is not None:
        raise ModelError(f"--dim {duplicate} and --shape {duplicate.rpartition('.')[0]} set the same extent: drop one")
    return {**dims, **bindings}


def parse_assumed_shapes(texts: list[str] | None) -> dict[str, str]:
    """Return `["a=f32[1,8]"]` as a dict of types by value. Raises ModelError for a text of another form."""
    return _parse_repeated(texts, "--assume", r".+=[^=]+", "NAME=SHAPE", "a=f32[1,8]")


def parse_max_trips(texts: list[str] | None) -> dict[str, int]:
    """Return `["8", "loop=9"]` as a dict of maximum trip counts by loop; the key "" means every loop.

    Raises ModelError for a text of another form.
    """
    return _parse_maxima(texts, "--max-trips", "LOOP", "loop")


def _parse_maxima(texts: list[str] | None, option: str, named: str, every: str) -> dict[str, int]:
    texts_by_name = _parse_repeated(
        texts, option, r"(.+=)?\s*[0-9]{1,18}\s*", f"N or {named}=N", "100", f"for every {every}"
    )
    return {name: int(text) for name, text in texts_by_name.items()}


def _parse_repeated(
    texts: list[str] | None, option: str, pattern: str, form: str, example: str, unnamed: str = ""
) -> dict[str, str]:
    """Return the texts of a repeated option by name; the last "=" separates name and text, and "" is the missing name.

    Raises ModelError if a text does not match `pattern`, or a name is given twice.
    """
    texts_by_name: dict[str, str] = {}
    for text in texts or ():
        if not re.fullmatch(pattern, text, re.DOTALL):
            raise ModelError(f"{option} {text[:80]}: write {form}, for instance {option} {example}")
        name, _, value = text.rpartition("=")
        if name in texts_by_name:
            raise ModelError(f"{option} {name or unnamed} is given twice")
        texts_by_name[name] = value
    return texts_by_name


def parse_regions(texts: Sequence[str]) -> tuple[MemoryRegion, ...]:
    """Return the memory regions written as "sram=512KiB@1": name, capacity, and cost of an access to one byte.

    With a rate ("@10GB/s") instead of a cost, only transfers access the region, at the given bytes a second. Without
    any costs, the regions are listed cheapest first, and cost 1, 10, 100, ... a byte. Raises ProblemError for a text of
    another form, for a rate of zero, or if only some regions have a cost; SubletError for a bad number of bytes.
    """
    regions = []
    with_cost = [text for text in texts if "@" in text and not text.endswith(RATE_SUFFIX)]
    for position, text in enumerate(texts):
        name, equals, rest = text.partition("=")
        size, at, cost = rest.partition("@")
        if equals and at and cost.endswith(RATE_SUFFIX):
            rate = parse_bytes(cost.removesuffix(RATE_SUFFIX))
            if not rate:
                raise ProblemError(f"region {text[:80]!r}: a transfer rate of 0 bytes a second moves nothing")
            regions.append(MemoryRegion(name.strip(), parse_bytes(size), rate=rate))
            continue
        if not equals or (at and not (cost.isascii() and cost.isdigit() and len(cost) <= 30)):
            raise ProblemError(f"region {text[:80]!r}: write NAME=BYTES or NAME=BYTES@COST, such as sram=512KiB@1")
        if with_cost and not at:
            raise ProblemError(f"region {text[:80]!r}: pass a cost (@COST) for every region, or for none")
        regions.append(MemoryRegion(name.strip(), parse_bytes(size), int(cost) if at else COST_FACTOR**position))
    return tuple(regions)
