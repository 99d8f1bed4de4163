"""A dynamic graph has one thread in it at a time, and keeps no more than it needs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest

import sublet
from sublet import nn
from sublet.base.errors import RunError, SubletError
from sublet.dynamic.tensor_storage import KEPT_BYTES


def elsewhere(work: Callable[[], Any]) -> Any:
    """What another thread gets, or is told."""
    found: list[Any] = []

    def job() -> None:
        try:
            found.append(work())
        except SubletError as error:
            found.append(error)

    thread = Thread(target=job)
    thread.start()
    thread.join()
    return found[0]


def test_one_thread_after_another() -> None:
    d = sublet.DynamicGraph()
    x = d.tensor(np.ones(3, np.float32))
    double = d.jit(lambda x: x * 2)
    for _ in range(3):
        y = elsewhere(lambda: double(x + 1))
        assert (y - 1).tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("what", ["call", "scope", "no_grad", "loop", "evaluation"])
def test_a_second_thread_is_told(what: str) -> None:
    d = sublet.DynamicGraph()
    x = d.tensor(np.ones(3, np.float32))
    told: list[Any] = []

    def second() -> None:
        told.append(elsewhere(lambda: x + 1))
        told.append(elsewhere(lambda: d.parameter("w", (3,), initial=0)))
        told.append(elsewhere(lambda: d.jit(lambda: None)()))
        told.append(elsewhere(x.numpy))

    if what == "call":
        d.jit(second)()
    elif what == "loop":
        with d.while_({"h": x}, rounds=2) as loop:
            second()
            loop.next(h=loop["h"] + 1)
    else:
        with {"scope": lambda: d.scope("a"), "no_grad": d.no_grad, "evaluation": d.evaluation}[what]():
            second()
    for error in told[:3]:
        assert isinstance(error, RunError)
        assert "another thread is in this dynamic graph" in str(error)
    assert told[3].tolist() == [1.0, 1.0, 1.0]  # what is computed may be looked at
    assert (x + 1).tolist() == [2.0, 2.0, 2.0]
    assert elsewhere(lambda: (x + 1).tolist()) == [2.0, 2.0, 2.0]


def test_threads_at_once_compute_right_or_are_told() -> None:
    d = sublet.DynamicGraph()
    w = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    step = d.jit(lambda x: nn.tanh(x @ d.parameter("w", (8, 8), initial=w)))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(40):
            x = random.normal(size=(int(random.integers(2, 5)), 8)).astype(np.float32)
            try:
                y = step(d.tensor(x)).numpy()
            except RunError as error:
                if "another thread" not in str(error):
                    wrong.append(error)
            else:
                if np.abs(y - np.tanh(x @ w)).max() > 1e-4:
                    wrong.append(y)

    threads = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def grown(d: sublet.DynamicGraph, lengths: range) -> int:
    """Bytes that the graph keeps free, and that Python has allocated, after inputs of many lengths."""
    w = d.parameter("w", (64, 64), initial=0.01)
    for i in lengths:
        float(nn.relu(d.tensor(np.ones((100 + i * 7919 % 3000, 64), np.float32)) @ w).sum())
    return tracemalloc.get_traced_memory()[0]


def test_many_lengths_take_no_more_than_few() -> None:
    tracemalloc.start()
    try:
        d = sublet.DynamicGraph()
        few = grown(d, range(50))
        many = grown(d, range(50, 1050))
    finally:
        tracemalloc.stop()
    assert d.used_bytes == 64 * 64 * 4
    assert d.free_bytes <= KEPT_BYTES
    assert d.free_bytes == sum(nbytes * len(blocks) for nbytes, blocks in d._eager.pool.free.items())
    assert many <= few + KEPT_BYTES


def test_what_was_in_use_at_once_is_kept() -> None:
    """A step finds its blocks again, however large they are."""
    d = sublet.DynamicGraph()
    tensors = [d.tensor(np.zeros(1 << 20, np.float32)) for _ in range(8)]
    del tensors
    assert d.free_bytes == 8 << 22
