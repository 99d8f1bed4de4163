"""Finds the facts of ATen's operators in the PyTorch that is installed, and writes `integrations/torch/facts.json`.

    python -m tests.integrations.torch.find_facts

The file keeps the facts of every other minor version of PyTorch.

An operator has an overload that writes where it is told if PyTorch wrote it by hand: one that its build system made
computes elsewhere and copies. An operator that PyTorch says works element by element may overwrite an input if it gives
the same bits with its output there, for every type it takes, at sizes below and above those of vectors and threads.
"""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

SIZES = (1, 7, 64, 1000, 70001)
DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16)


RELAYING = (
    "_log_softmax_backward_data.out",
    "_native_batch_norm_legit.no_stats_out",
    "log_sigmoid_forward.output",
    "max_unpool2d.out",
    "max_unpool3d.out",
    "native_batch_norm.out",
    "normal.Tensor_Tensor_out",
    "reflection_pad2d_backward.grad_input",
    "reflection_pad3d.out",
    "reflection_pad3d_backward.grad_input",
    "replication_pad2d_backward.grad_input",
    "replication_pad3d.out",
    "replication_pad3d_backward.grad_input",
)
"""They lay their result otherwise than its place is where an input is not row-major, or draw its numbers in the order
of that place, which is not that of a result that they make themselves: `beside` finds them."""


WITHOUT_RECORD = (
    "_log_softmax_backward_data.default",
    "_native_batch_norm_legit.no_stats",
    "native_batch_norm.default",
)
"""Operators without a record, which the planner takes for impure: `native_batch_norm` changes running statistics
contrary to its schema; the `out=` of the two others is one of RELAYING."""


def overloads() -> Iterator[tuple[str, Any]]:
    """Every operator of ATen's, `add.Tensor`, by name."""
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if name.startswith("aten::"):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            try:
                overload = overload or "default"
                yield f"{packet}.{overload}", getattr(getattr(torch.ops.aten, packet), overload)
            except AttributeError:
                continue


def is_functional(op: Any) -> bool:
    """Whether it gives new tensors and writes nothing."""
    returns = op._schema.returns
    tensors = all(str(each.type) in ("Tensor", "Optional[Tensor]") for each in returns)
    return bool(returns) and tensors and not op._schema.is_mutable and not any(each.alias_info for each in returns)


def out_of(name: str, op: Any) -> str:
    """The overload that writes to tensors it is given, "" when there is none that PyTorch wrote by hand."""
    packet = getattr(torch.ops.aten, name.partition(".")[0])
    own = [(each.name, str(each.type)) for each in op._schema.arguments]
    dropped = {"dtype", "layout", "device", "pin_memory", "memory_format"}
    for overload in packet.overloads():
        found = getattr(packet, overload)
        places = [each for each in found._schema.arguments if each.is_out]
        others = [(each.name, str(each.type)) for each in found._schema.arguments if not each.is_out]
        wanted = [each for each in own if each in others or each[0] not in dropped]
        if places and others == wanted and len(places) == len(op._schema.returns):
            return "" if torch.Tag.generated in found.tags else f"{packet.__name__.rpartition('.')[2]}.{overload}"
    return ""


def stays(op: Any, out: Any) -> bool:
    """Whether it writes where it is told with the arguments that it is usually given, and gives that no other size."""
    args, right = None, None
    for most in (3.0, 1.0):  # probabilities are at most 1
        args = sample(op, 7, torch.float32, 7, most)
        with suppress(RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
            right = op(*args) if args is not None else None
            break
    if not isinstance(right, torch.Tensor):
        return True
    memory = np.zeros(max(1, right.numel() * right.element_size()), np.uint8)  # which PyTorch cannot make larger
    place = torch.from_numpy(memory)[: right.numel() * right.element_size()].view(right.dtype).view(right.shape)
    try:
        out(*(args or ()), **{each.name: place for each in out._schema.arguments if each.is_out})
    except (RuntimeError, TypeError) as error:
        return "resiz" not in str(error)
    return True


def inside_of(name: str, op: Any) -> str:
    """The overload that writes its result over its first argument, "" when there is none that PyTorch wrote by hand."""
    packet = getattr(torch.ops.aten, f"{name.partition('.')[0]}_", None)
    own = [(each.name, str(each.type)) for each in op._schema.arguments]
    for overload in packet.overloads() if packet is not None else ():
        found = getattr(packet, overload)
        same = [(each.name, str(each.type)) for each in found._schema.arguments] == own
        if same and torch.Tag.generated not in found.tags:
            return f"{packet.__name__.rpartition('.')[2]}.{overload}"
    return ""


def operator(name: str) -> Any:
    """The operator of a name."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def sample(op: Any, size: int, dtype: torch.dtype, seed: int, most: float = 3.0) -> list[Any] | None:
    """Arguments by position: tensors of one size and type with elements up to `most`, small numbers; None when it takes
    other things."""
    torch.manual_seed(seed)
    args: list[Any] = []
    for each in op._schema.arguments:
        kind = str(each.type)
        if kind == "Tensor":
            drawn = torch.rand(size, dtype=torch.float64) * most
            args.append((drawn > 1) if dtype == torch.bool else drawn.to(dtype))
        elif each.kwarg_only:
            break
        elif each.has_default_value() and each.default_value is not None:
            args.append(each.default_value)
        elif kind in ("number", "float", "Scalar"):
            args.append(True if dtype == torch.bool else 2)
        elif kind == "int" or kind in ("Optional[number]", "Optional[float]", "Optional[int]"):
            args.append(1)
        elif kind.startswith("Optional"):
            args.append(None)
        else:
            return None
    return args


def overwritten(op: Any, out: Any) -> tuple[list[int], int]:
    """The positions of inputs that the first output may lie on, and how many samples say so."""
    positions: set[int] | None = None
    runs = 0
    for dtype in DTYPES:
        for size in SIZES:
            args = sample(op, size, dtype, size)
            if args is None:
                return [], 0
            try:
                right = op(*args)
            except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
                break
            if not isinstance(right, torch.Tensor) or right.shape != (size,):
                return [], 0
            agree = set()
            for position, argument in enumerate(args):
                if isinstance(argument, torch.Tensor) and argument.element_size() == right.element_size():
                    if runs_over(out, args, position, right):
                        agree.add(position)
                elif isinstance(argument, torch.Tensor):
                    agree.add(position)  # says nothing: the planner does not ask for this
            runs += 1
            positions = agree if positions is None else positions & agree
    return sorted(positions or ()), runs


def runs_over(out: Any, args: list[Any], position: int, right: torch.Tensor) -> bool:
    """Whether it gives the same bits with its output over this argument."""
    copies = [each.clone() if isinstance(each, torch.Tensor) else each for each in args]
    place = copies[position].view(right.dtype)
    names = [each.name for each in out._schema.arguments if each.is_out]
    try:
        out(*copies, **dict.fromkeys(names, place))  # in place there are none: the first argument is the place
    except RuntimeError:
        return False
    return bool(torch.equal(place.view(torch.uint8), right.view(torch.uint8)))


def write(place: Path, version: str, found: dict[str, Any]) -> None:
    """Write the facts of a version to the file, in groups of records equal in the same versions."""
    minor = ".".join(version.split(".")[:2])
    known = json.loads(place.read_text())
    records = {
        each: {name: json.dumps(record) for group in known["groups"] if each in group["versions"]
               for name, record in group["operators"].items()}
        for each in known["versions"]
    }  # fmt: skip
    records[minor] = {name: json.dumps(record) for name, record in found.items()}
    versions = sorted(records, key=lambda each: [int(part) for part in each.split(".")])
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, record in sorted({pair for each in records.values() for pair in each.items()}):
        having = tuple(each for each in versions if records[each].get(name) == record)
        groups[having].append(f"{json.dumps(name)}: {record}")
    parts = [
        f'    {{"versions": {json.dumps(having)}, "operators": {{\n      ' + ",\n      ".join(lines) + "\n    }}"
        for having, lines in sorted(groups.items(), key=lambda each: (-len(each[0]), each))
    ]
    measured = json.dumps({each: version if each == minor else known["versions"][each] for each in versions})
    place.write_text(f'{{\n  "versions": {measured},\n  "groups": [\n' + ",\n".join(parts) + "\n  ]\n}\n")


def main() -> None:
    """Write the facts."""
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for name, op in overloads():
        if not is_functional(op) or name in WITHOUT_RECORD:
            continue
        record: dict[str, Any] = {}
        out = out_of(name, op)
        if out and (out in RELAYING or not stays(op, operator(out))):
            print(f"{out} takes its result for memory of another size or form")
            out = ""
        if out:
            record["out"] = out
        if torch.Tag.nondeterministic_seeded in op.tags:
            record["random"] = True
        elif torch.Tag.pointwise in op.tags:
            if not out and (inside := inside_of(name, op)):
                record["inside"] = inside
            if found_one := out or record.get("inside"):
                positions, _ = overwritten(op, operator(found_one))
                if positions:
                    record["overwrites"] = positions if out else [0]
        found[name] = record
    place = Path(str(files("sublet.integrations.torch"))) / "facts.json"
    write(place, torch.__version__.partition("+")[0], found)
    with_out = sum("out" in record for record in found.values())
    inplace = sum("overwrites" in record for record in found.values())
    print(f"{len(found)} operators, {with_out} write where they are told, {inplace} may overwrite an input")


if __name__ == "__main__":
    main()
