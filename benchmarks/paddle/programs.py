"""Writes training programs with Paddle itself: a script for the Python that has paddlepaddle 2.6 to 3.0.

    python benchmarks/paddle/programs.py transformer FOLDER
    python benchmarks/paddle/programs.py translation FOLDER --source 50 --target 40

FOLDER gets `program.pb`, `startup.pb`, `feeds.npz` and `about.json` (the name of the loss). Paddle's call stacks are
left out: they name files of the machine that wrote them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from pathlib import Path
from typing import Any, Callable, Tuple  # noqa: UP035 - Python 3.8 has no others

os.environ.update(FLAGS_enable_pir_api="0")  # read by Paddle while it is imported

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

RUNS = 3
Feeds = Callable[[np.random.Generator], "dict[str, np.ndarray]"]
Built = Tuple[Any, Feeds]  # noqa: UP006


def transformer(arguments: argparse.Namespace) -> Built:
    """An encoder of `layers` layers that marks each token; batch x length tokens of `width` numbers."""
    batch, length, width, words = arguments.batch, arguments.length, arguments.width, 1000
    tokens = paddle.static.data("tokens", [batch, length], "int64")
    marks = paddle.static.data("marks", [batch, length, 1], "int64")
    places = paddle.static.data("places", [1, length], "int64")
    embedded = nn.Embedding(words, width)(tokens) + nn.Embedding(length, width)(places)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, activation="relu")
    encoded = nn.TransformerEncoder(layer, arguments.layers)(embedded)
    loss = F.cross_entropy(nn.Linear(width, words)(encoded), marks).mean()

    def feeds(random: np.random.Generator) -> dict[str, np.ndarray]:
        return {
            "tokens": random.integers(0, words, (batch, length)),
            "marks": random.integers(0, words, (batch, length, 1)),
            "places": np.arange(length)[None],
        }

    return loss, feeds


def translation(arguments: argparse.Namespace) -> Built:
    """A GRU encoder and a GRU decoder with attention, each a loop of as many trips as its sentence has words."""
    batch, words, narrow, wide = arguments.batch, 1000, 64, 128
    source, target = arguments.source, arguments.target
    src = paddle.static.data("src", [batch, source], "int64")
    trg = paddle.static.data("trg", [batch, target], "int64")
    nxt = paddle.static.data("nxt", [batch, target], "int64")
    read, written = nn.Embedding(words, narrow)(src), nn.Embedding(words, narrow)(trg)
    reader, writer = nn.GRUCell(narrow, wide), nn.GRUCell(narrow + wide, wide)
    choose, look = nn.Linear(2 * wide, words), nn.Linear(narrow, wide)
    by_place = paddle.transpose(read, [1, 0, 2])

    def row(table: Any, place: Any) -> Any:
        return paddle.squeeze(paddle.gather(table, place), 0)

    def encode(place: Any, state: Any) -> list[Any]:
        return [place + 1, reader(row(by_place, place), state)[1]]

    start = paddle.zeros([1], "int64")
    end = paddle.full([1], source, "int64")
    state = paddle.zeros([batch, wide])
    state.stop_gradient = False
    _, state = paddle.static.nn.while_loop(lambda place, state: place < end, encode, [start, state])
    inputs, labels = paddle.transpose(written, [1, 0, 2]), paddle.transpose(nxt, [1, 0])
    memory = look(read)

    def decode(place: Any, state: Any, total: Any) -> list[Any]:
        scores = F.softmax((memory * paddle.unsqueeze(state, 1)).sum(-1))
        context = (memory * paddle.unsqueeze(scores, 2)).sum(1)
        state = writer(paddle.concat([row(inputs, place), context], 1), state)[1]
        words = choose(paddle.concat([state, context], 1))
        loss = F.cross_entropy(words, paddle.reshape(row(labels, place), [-1, 1])).mean()
        return [place + 1, state, total + paddle.reshape(loss, [1])]

    first, last, total = paddle.zeros([1], "int64"), paddle.full([1], target, "int64"), paddle.zeros([1])
    total.stop_gradient = False
    _, _, total = paddle.static.nn.while_loop(lambda place, *_: place < last, decode, [first, state, total])
    loss = (total / float(target)).mean()

    def feeds(random: np.random.Generator) -> dict[str, np.ndarray]:
        sizes = {"src": source, "trg": target, "nxt": target}
        return {name: random.integers(0, words, (batch, size)) for name, size in sizes.items()}

    return loss, feeds


def lstm(arguments: argparse.Namespace) -> Built:
    """An LSTM cell in a loop, of which only what it gives last is used: nothing comes of its last state.

    Paddle writes the gradient of that without a data type, and does not parse the program that it wrote.
    """
    batch, source, wide = arguments.batch, arguments.source, 16
    x = paddle.static.data("x", [batch, source, wide], "float32")
    by_place, cell = paddle.transpose(x, [1, 0, 2]), nn.LSTMCell(wide, wide)
    first, last = paddle.zeros([1], "int64"), paddle.full([1], source, "int64")
    given, state = paddle.zeros([batch, wide]), paddle.zeros([batch, wide])
    given.stop_gradient = state.stop_gradient = False

    def step(place: Any, given: Any, state: Any) -> list[Any]:
        given, states = cell(paddle.squeeze(paddle.gather(by_place, place), 0), (given, state))
        return [place + 1, given, states[1]]

    _, given, _ = paddle.static.nn.while_loop(lambda place, *_: place < last, step, [first, given, state])

    def feeds(random: np.random.Generator) -> dict[str, np.ndarray]:
        return {"x": random.standard_normal((batch, source, wide), dtype=np.float32)}

    return given.mean(), feeds


def resnet(arguments: argparse.Namespace) -> Built:
    """ResNet-50 as Paddle ships it, on square pictures."""
    batch, side = arguments.batch, arguments.side
    x = paddle.static.data("x", [batch, 3, side, side], "float32")
    y = paddle.static.data("y", [batch, 1], "int64")
    loss = F.cross_entropy(paddle.vision.models.resnet50()(x), y).mean()

    def feeds(random: np.random.Generator) -> dict[str, np.ndarray]:
        pictures = random.standard_normal((batch, 3, side, side), dtype=np.float32)
        return {"x": pictures, "y": random.integers(0, 1000, (batch, 1))}

    return loss, feeds


def branch(arguments: argparse.Namespace) -> Built:
    """Two arms, of which the feeds take one and the other in turn."""
    batch, width = arguments.batch, arguments.width
    x = paddle.static.data("x", [batch, width], "float32")
    y = paddle.static.data("y", [batch, 1], "float32")
    hidden = paddle.tanh(nn.Linear(width, width)(x))
    left, right = nn.Linear(width, width), nn.Linear(width, width)

    def squared() -> Any:
        return paddle.square(F.relu(left(hidden))) * 0.5

    def gated() -> Any:
        return F.sigmoid(right(hidden)) * hidden + hidden

    chosen = paddle.static.nn.cond(x.mean() > 0, squared, gated)
    loss = paddle.square(nn.Linear(width, 1)(F.relu(chosen)) - y).mean()
    signs = itertools.cycle((1, -1))

    def feeds(random: np.random.Generator) -> dict[str, np.ndarray]:
        numbers = np.abs(random.standard_normal((batch, width), dtype=np.float32)) * next(signs)
        return {"x": numbers, "y": random.standard_normal((batch, 1), dtype=np.float32)}

    return loss, feeds


def without_call_stacks(program: Any) -> bytes:
    for block in program.blocks:
        for op in block.ops:
            if op.desc.has_attr("op_callstack"):
                op.desc.remove_attr("op_callstack")
    written: bytes = program.desc.serialize_to_string()
    return written


def write(arguments: argparse.Namespace) -> None:
    paddle.enable_static()
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        loss, feeds = globals()[arguments.network](arguments)
        momentum = arguments.network == "resnet"
        (paddle.optimizer.Momentum(1e-2, 0.9) if momentum else paddle.optimizer.Adam(1e-3)).minimize(loss)
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "program.pb").write_bytes(without_call_stacks(program))
    (folder / "startup.pb").write_bytes(without_call_stacks(startup))
    random = np.random.default_rng(7)
    runs = {f"{name}.{run}": array for run in range(RUNS) for name, array in feeds(random).items()}
    np.savez_compressed(folder / "feeds.npz", **runs)
    (folder / "about.json").write_text(json.dumps({"loss": loss.name}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="writes a training program with Paddle")
    parser.add_argument("network", choices=["transformer", "translation", "resnet", "branch", "lstm"])
    parser.add_argument("folder")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--source", type=int, default=30)
    parser.add_argument("--target", type=int, default=30)
    write(parser.parse_args())


if __name__ == "__main__":
    main()
