"""`.pt2` files damaged, and programs in them that lie, thousands of times: `make fuzz`.

    python -m tests.frontends.pytorch.hostile [--flips 10000]

Such a file is a ModelError or a model; nothing else is raised.
"""

from __future__ import annotations

import io
import json
import random
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sublet
from sublet.frontends.torch.exported import quietly
from tests.frontends.damage import NAME, Format, arguments, judged, tell

MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
OTHERS = (None, -1, 10**30, 1.5, "x", "", [], {}, [[]], True)


class Chosen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.first(x))
        return self.last(torch.cond(y.sum() > 0, lambda y: y * 2, lambda y: y - 1, (y,)))


def saved(module: nn.Module, x: Any) -> bytes:
    """A program as torch.export.save writes it."""
    into = io.BytesIO()
    with quietly():
        torch.export.save(torch.export.export(module, (x,)), into)
    return into.getvalue()


def changed(content: bytes, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """The archive with other contents of its entries; None leaves one out."""
    into = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as target:
        for entry in source.infolist():
            inside = change(entry.filename.partition("/")[2], source.read(entry))
            if inside is not None:
                target.writestr(entry.filename, inside)
    return into.getvalue()


def lying(content: bytes, draw: random.Random) -> bytes:
    """The archive with something else at one place of its program or of its list of weights."""
    name = draw.choice([MODEL, WEIGHTS])

    def change(entry: str, inside: bytes) -> bytes:
        if entry != name:
            return inside
        record = json.loads(inside)
        holder, key = draw.choice(list(_places(record)))
        holder[key] = draw.choice(OTHERS)
        return json.dumps(record).encode()

    return changed(content, change)


def _places(record: Any) -> Iterator[tuple[Any, Any]]:
    """Everything in a JSON value: what holds it, and its key there."""
    for key in list(record) if isinstance(record, dict) else range(len(record)) if isinstance(record, list) else ():
        yield record, key
        yield from _places(record[key])


@cache
def files() -> Sequence[bytes]:
    return (saved(Chosen().eval(), torch.randn(4, 6)),)


def read(raw: bytes) -> sublet.Model:
    """The model in the bytes of a file called `damaged`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{NAME}.pt2"
        path.write_bytes(raw)
        return sublet.read_model(path)


FILES = Format(files, read, lambda _, __, ___: "read", longest=700)


def judge_lies(count: int, seed: int = 0) -> Counter[str]:
    """What became of so many files that lie."""
    draw = random.Random(seed)
    return Counter(judged(FILES, lying(files()[0], draw), False, False) for _ in range(count))


def main() -> None:
    asked = arguments(__doc__).parse_args()
    tell(FILES, asked)
    for verdict, count in judge_lies(asked.flips // 10, asked.seed).items():
        print(f"{count:>8} that lie: {verdict}")


if __name__ == "__main__":
    main()
