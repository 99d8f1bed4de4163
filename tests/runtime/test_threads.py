"""Threads and forks: what may run at the same time computes right, what may not waits or is told so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from threading import Thread

import numpy as np
import pytest

import sublet
from sublet import nn
from sublet.base.errors import SubletError
from sublet.runtime.executable import Executable

SIZE = 192


def network(number: int, size: int = SIZE) -> Executable:
    g = sublet.Graph(f"net{number}")
    y: sublet.Tensor = g.input("x", (size, size))
    for layer in range(4):
        y = nn.tanh(y @ g.parameter(f"w{layer}", (size, size), initial=0.01 * (number + 1)))
    g.output("y", y)
    return sublet.compile(g)


def counter(initial: float = 0.0) -> Executable:
    """An executable whose state is updated by a run."""
    g = sublet.Graph("counter")
    total = g.parameter("total", (4,), initial=initial)
    g.update(total, total + g.input("x", (4,)))
    return sublet.compile(g)


def run_together(*jobs: Callable[[], None]) -> None:
    threads = [Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_process(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_use_may_be_in_several_threads() -> None:
    """PyTorch is imported by one thread while others ask whether it is there."""
    script = """
import threading, numpy as np, sublet
from sublet import nn
failed = []
def work():
    try:
        g = sublet.Graph("m")
        x = g.input("x", (4, 16))
        g.output("y", nn.tanh(x @ g.parameter("w", (16, 16), initial=0.1)))
        run = sublet.compile(g)
        for _ in range(5):
            run(x=np.ones((4, 16), "f4"))
    except BaseException as error:
        failed.append(repr(error))
threads = [threading.Thread(target=work) for _ in range(6)]
[each.start() for each in threads]
[each.join() for each in threads]
print(failed)
"""
    assert in_process(script).strip() == "[]"


def test_executables_in_one_arena_take_turns() -> None:
    runs = [network(number) for number in range(3)]
    x = np.random.default_rng(0).normal(size=(SIZE, SIZE)).astype(np.float32)
    right = [run(x=x)["y"] for run in runs]
    memory = sublet.aligned_bytes(max(run.arena_bytes for run in runs), 64)
    for run in runs:
        run.bind("arena", memory)
    wrong: list[int] = []

    def job(number: int) -> Callable[[], None]:
        def work() -> None:
            for _ in range(30):
                if not np.array_equal(runs[number](x=x)["y"], right[number]):
                    wrong.append(number)

        return work

    run_together(*map(job, range(3)))
    assert not wrong


def test_who_meets_in_memory_shares_a_lock_and_nobody_else() -> None:
    first, second, third = (network(number, 8) for number in range(3))
    nbytes = max(run.arena_bytes for run in (first, second, third))
    one, other = sublet.aligned_bytes(nbytes, 64), sublet.aligned_bytes(nbytes, 64)
    x = np.ones((8, 8), np.float32)

    def locks(*given: object) -> int:
        for run, memory in zip((first, second, third), given, strict=True):
            run.bind("arena", memory)
            run(x=x)
        return len({id(run._locks.shared_lock()) for run in (first, second, third)})

    assert locks(one, one, one) == 1
    assert locks(one, one, other) == 2
    assert locks(other, one, sublet.aligned_bytes(nbytes, 64)) == 3


def test_who_joins_two_groups_joins_them() -> None:
    runs = [network(number, 8) for number in range(3)]
    nbytes = max(run.arena_bytes for run in runs)
    step = -(-nbytes // 64) * 64
    memory = sublet.aligned_bytes(2 * step, 64)
    x = np.ones((8, 8), np.float32)
    runs[0].bind("arena", memory[:step])
    runs[1].bind("arena", memory[step:])
    runs[2].bind("arena", memory[step // 2 // 64 * 64 :])
    for run in runs:
        run(x=x)
    assert len({id(run._locks.shared_lock()) for run in runs}) == 1


def test_who_lends_weights_that_it_updates_shares_a_lock() -> None:
    lender = counter()
    g = sublet.Graph("reader")
    g.output("y", g.parameter("total", (4,), initial=0.0) * 2)
    reader = sublet.compile(g, weights=lender.weights)
    lender(x=np.ones(4, np.float32))
    assert reader()["y"].tolist() == [2.0] * 4
    assert reader._locks.shared_lock() is lender._locks.shared_lock()


def test_readers_of_the_same_weights_do_not_wait() -> None:
    first = network(0, 8)
    g = sublet.Graph("reader")
    g.output("y", g.parameter("w0", (8, 8)) * 2)
    second = sublet.compile(g, weights=first.weights)
    assert second._locks.shared_lock() is not first._locks.shared_lock()


def test_a_run_inside_of_a_run_in_the_same_bytes_is_told() -> None:
    inner: list[Executable] = []

    def compute(x: np.ndarray, out: np.ndarray) -> None:
        inner[0](x=x)
        out[...] = x

    sublet.command("threads.nested", compute, infer=lambda x: x)
    g = sublet.Graph("outer")
    x = g.input("x", (8, 8))
    g.output("y", g.apply("threads.nested", x + 1)[0] * 2)
    outer = sublet.compile(g)
    given = np.ones((8, 8), np.float32)
    inner.append(network(0, 8))
    assert outer(x=given)["y"].tolist() == [[4.0] * 8] * 8
    memory = sublet.aligned_bytes(max(outer.arena_bytes, inner[0].arena_bytes), 64)
    outer.bind("arena", memory)
    inner[0].bind("arena", memory)
    with pytest.raises(SubletError, match="net0 cannot run inside a run of outer"):
        outer(x=given)
    inner[0] = outer
    with pytest.raises(SubletError, match="outer cannot run inside a run of outer"):
        outer(x=given)


def child_of(work: Callable[[], str]) -> str:
    """What `work` tells in the child of a fork."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, work().encode())
        except BaseException as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        found = told.read()
    os.waitpid(child, 0)
    return found


FORKS = """
import os, sys, threading
sys.path.insert(0, {folder!r})
import numpy as np, sublet
from sublet import nn
from test_threads import child_of, counter, network
entered, over = threading.Event(), threading.Event()
def compute(x, out):
    entered.set()
    over.wait()
    out[...] = x
sublet.command("threads.wait", compute, infer=lambda x: x)
g = sublet.Graph("slow")
total = g.parameter("total", (4,), initial=0.0)
g.update(total, total + g.apply("threads.wait", g.input("x", (4,)))[0])
slow = sublet.compile(g)
quick = network(0, 8)
x = np.ones((8, 8), np.float32)
quick(x=x)
thread = threading.Thread(target=slow, kwargs=dict(x=np.ones(4, np.float32)))
thread.start()
entered.wait()
def work():
    over.set()
    found = [str(quick(x=x)["y"].shape)]
    try:
        slow(x=np.ones(4, np.float32))
    except sublet.SubletError as error:
        found.append(str(error))
    slow.set_state("total", np.zeros(4, np.float32))
    slow(x=np.ones(4, np.float32))
    found.append(str(slow.state("total").tolist()))
    return "|".join(found)
print(child_of(work))
over.set()
thread.join()
print(slow.state("total").tolist())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_of_a_fork_runs_or_says_why_not() -> None:
    child, parent = in_process(FORKS.format(folder=os.path.dirname(__file__))).splitlines()
    shape, why, state = child.split("|")
    assert shape == "(8, 8)"
    assert "the process forked" in why
    assert state == parent == "[1.0, 1.0, 1.0, 1.0]"


GRAPH_FORKS = """
import sys, threading
sys.path.insert(0, {folder!r})
import numpy as np, sublet
from test_threads import child_of
entered, over = threading.Event(), threading.Event()
busy, idle = sublet.DynamicGraph(), sublet.DynamicGraph()
x = idle.tensor(np.ones(3, np.float32))
def work():
    with busy.scope("a"):
        entered.set()
        over.wait()
thread = threading.Thread(target=work)
thread.start()
entered.wait()
def child():
    found = str((x + 1).tolist())
    try:
        busy.tensor(1.0)
    except sublet.SubletError as error:
        found += "|" + str(error)
    return found
print(child_of(child))
over.set()
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_dynamic_graph_after_a_fork() -> None:
    found, why = in_process(GRAPH_FORKS.format(folder=os.path.dirname(__file__))).strip().split("|")
    assert found == "[2.0, 2.0, 2.0]"
    assert "closed" in why


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("backend", ["torch", "onnxruntime"])
def test_backends_with_threads_of_their_own_run_in_a_child(backend: str) -> None:
    """OpenMP's threads, and those of sessions, stay behind in the parent."""
    script = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
import numpy as np, onnx, sublet, torch
from onnx import helper
from sublet import nn
from test_threads import child_of
torch.set_num_threads(2)
if {backend!r} == "torch":
    g = sublet.Graph("m")
    x = g.input("x", (512, 512))
    g.output("y", nn.tanh(x @ g.parameter("w", (512, 512), initial=0.01)))
    run = sublet.compile(g)
else:
    x, y = (helper.make_tensor_value_info(name, 1, [512, 512]) for name in "xy")
    nodes = [helper.make_node("MatMul", ["x", "x"], ["z"]), helper.make_node("Softmax", ["z"], ["y"])]
    made = helper.make_model(helper.make_graph(nodes, "m", [x], [y]), opset_imports=[helper.make_opsetid("", 17)])
    run = sublet.compile(made, backend="onnxruntime")
x = np.ones((512, 512), np.float32)
right = run(x=x)["y"]
print(child_of(lambda: str(np.allclose(run(x=x)["y"], right))))
"""
    assert in_process(script).strip() == "True"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_streams_run_in_a_child() -> None:
    """Threads of streams stay behind in the parent: the child starts its own."""
    script = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
import numpy as np, sublet
from sublet import nn
from test_threads import child_of
g = sublet.Graph("two")
x = g.input("x", (8, 8))
g.output("y", nn.tanh(x) + nn.exp(x))
run = sublet.compile(g, options=sublet.Options(streams=2))
x = np.ones((8, 8), np.float32)
right = run(x=x)["y"]
print(child_of(lambda: str(np.array_equal(run(x=x)["y"], right))))
"""
    assert in_process(script).strip() == "True"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_session_over_ranges_is_one_error_in_a_child() -> None:
    """The lock may be held by a thread of the parent: no use of a session waits for it."""
    script = f"""
import sys, threading
sys.path.insert(0, {os.path.dirname(__file__)!r})
import numpy as np, sublet
from test_threads import child_of
from benchmarks.models.transformers import decoder_with_caches
caches = {{f"past.{{i}}.{{kind}}": f"present.{{i}}.{{kind}}" for i in range(2) for kind in ("key", "value")}}
dims = {{"batch": 1, "new": (1, 4), "total": (1, 32), "past": 32}}
run = sublet.compile_ranges(decoder_with_caches(positions=32), dims, state=caches, options=sublet.Options(io="bound"))
session = run.session()
call = lambda: session(input_ids=np.ones((1, 2), np.int64), attention_mask=np.ones((1, 2), np.int64))
call()
held, over = threading.Event(), threading.Event()
def hold():
    with run.exclusive():
        held.set()
        over.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
def child():
    found = []
    for use in (call, session.reset, run.forget_points, lambda: session.state("past.0.key")):
        try:
            use()
            found.append("used")
        except sublet.SubletError as error:
            found.append("compile in the child" if "compile in the child" in str(error) else str(error))
    return "|".join(found)
print(child_of(child))
over.set()
thread.join()
"""
    assert in_process(script).strip() == "|".join(["compile in the child"] * 4)
