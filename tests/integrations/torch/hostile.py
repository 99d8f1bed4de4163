"""`.pt2` files damaged, and programs in them that lie, thousands of times: `make fuzz`.

    python -m tests.integrations.torch.hostile [--flips 10000]

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
from sublet.integrations.torch.reader.exported_program import silence_tracing
from tests.integrations.onnx.damage import NAME, Format, arguments, judged, tell
from tests.support.audit_hook import MARK, require_known, watched

MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
KEY, JSON = object(), object()
"""Steps of a place: the name of a field itself; into a string that is JSON."""

OTHERS = (None, -1, 10**30, 1.5, "x", "", [], {}, [[]], True)


PAYLOADS: tuple[Any, ...] = (
    {"__enum__": True, "fqn": f"{MARK}:cdll", "name": f"./{MARK}.so"},
    json.dumps({"__enum__": True, "fqn": "ctypes:cdll", "name": f"./{MARK}.so"}),
    json.dumps(
        [1, {"type": f"{MARK}.Tree", "context": json.dumps({"__enum__": True, "fqn": f"{MARK}:x", "name": "y"})}]
    ),
    f"{MARK}.cdll",
    f"torch.ops.aten.{MARK}.default",
    f"torch.hub.{MARK}",
    f"__import__('{MARK}')",
    f"Symbol('{MARK}').__class__.__mro__[-1].__subclasses__()",
    f'x"), __import__("{MARK}"), getattr(self, "y',
    f"__import__('os').system('touch {MARK}')",
)
"""What a library may resolve to a module, an attribute or a value: enumerations and types of tree specifications,
dotted names, expressions for SymPy and for `eval`, and a name that ends the source code that it is written into."""


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
    with silence_tracing():
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


Place = tuple[Any, ...]


def text_places(record: Any, path: Place = ()) -> Iterator[Place]:
    """Every string of a JSON value, values and keys, those within strings of JSON too."""
    if isinstance(record, str):
        yield path
        if record[:1] in ("[", "{"):
            yield from text_places(json.loads(record), (*path, JSON))
    elif isinstance(record, dict | list):
        for key in list(record) if isinstance(record, dict) else range(len(record)):
            if isinstance(record, dict):
                yield (*path, key, KEY)
            yield from text_places(record[key], (*path, key))


def replaced(record: Any, place: Place, payload: Any) -> Any:
    """The JSON value with a payload at a place."""
    if not place:
        return payload
    key, *rest = place
    if key is JSON:
        return json.dumps(replaced(json.loads(record), tuple(rest), payload))
    if rest == [KEY]:
        return {(str(payload) if name == key else name): each for name, each in record.items()}
    made = dict(record) if isinstance(record, dict) else list(record)
    made[key] = replaced(record[key], tuple(rest), payload)
    return made


def judge_payloads(step: int = 1, payloads: int = 1) -> Counter[str]:
    """What became of files with a payload in every `step`-th string, so many payloads each.

    Raises AssertionError where reading one causes an event that reading the honest file does not.
    """
    honest_file = saved(Chosen().eval(), torch.randn(4, 6))
    honest_file = changed(honest_file, lambda _, inside: inside)  # written by `zipfile`, as the others are
    read(honest_file)  # which imports what reading needs
    with watched() as honest:
        read(honest_file)
    tally: Counter[str] = Counter()
    for entry in (MODEL, WEIGHTS):
        record = json.loads(_entry(honest_file, entry))
        for i, place in enumerate(text_places(record)):
            nested = JSON in place
            for k in range(payloads) if nested or i % step == 0 else ():
                content = json.dumps(replaced(record, place, PAYLOADS[(i // step + k) % len(PAYLOADS)])).encode()
                raw = changed(honest_file, lambda name, inside, c=content, e=entry: c if name == e else inside)
                with watched() as events:
                    tally[judged(FILES, raw, False, False)] += 1
                require_known(events, honest, f"{entry} {place} with {PAYLOADS[(i // step + k) % len(PAYLOADS)]}")
    return tally


def _entry(content: bytes, name: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return next(archive.read(each) for each in archive.infolist() if each.filename.partition("/")[2] == name)


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
    for verdict, count in judge_payloads(payloads=len(PAYLOADS)).items():
        print(f"{count:>8} with a payload in a string: {verdict}")


if __name__ == "__main__":
    main()
