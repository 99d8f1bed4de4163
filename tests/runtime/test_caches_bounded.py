"""Every cache holds, after 1,000 lengths, no more than after 50 lengths and a constant.

A length is an input shape that came never before. Expensive contents are replaced by stubs where the cache itself is
what is tested: a plan takes a tenth of a second.
"""

from __future__ import annotations

import ast
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache as once
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np
import pytest

import sublet
from sublet import nn
from sublet.base import cache
from sublet.base.optional_imports import is_installed
from sublet.base.tensor import Unplannable
from sublet.dynamic import control_flow_commands, eager_executor
from sublet.dynamic.call_trie import TrieNode
from sublet.dynamic.jit_function import CALLS_PER_PLAN
from sublet.dynamic.tensor_storage import KEPT_BYTES, MAX_VIEWS_PER_BLOCK
from sublet.integrations.torch import operator_call
from sublet.ir.graph import Node, Value
from sublet.runtime import call_merging, tuning
from sublet.runtime.backends.reference import ReferenceBackend
from sublet.runtime.kernel import UnplannedCell

FEW, MANY = range(1, 51), range(51, 1051)
SOURCE = Path(sublet.__file__).parent

BY_NAME = {
    "integrations/paddle/operators/dialect.py": ("_facts_file", "_other_facts", "_plain_facts"),
    "integrations/tflite/dialect.py": ("_measured_kinds", "kernel_facts"),
    "integrations/torch/dialect.py": (
        "_aten_op",
        "collective_op",
        "fused_op",
    ),
    "integrations/torch/compile/loss_rows.py": ("loss_operator",),
    "integrations/torch/kernels/convolution.py": ("_has_fast_mkl",),
    "integrations/torch/operator_facts.py": ("_facts_file", "_packaged_version", "_warn_unknown", "facts_of_version"),
    "integrations/torch/operator_call.py": ("_enumerations", "operators"),
    "plan/file.py": ("_fields_of",),
    "runtime/poison.py": ("_possible_aliases", "live_before"),
    "runtime/workspace.py": ("_libc",),
}
"""Functions cached without a limit: by names of operators, without arguments, or for one run."""

CONTAINERS = {
    "integrations/torch/compile/compile_report.py": ("_records",),  # a record for each plan that is kept
    "base/dlpack.py": ("_lent",),  # while somebody holds the bytes
    "base/interrupts.py": ("_LOCKS", "_RENEWED"),  # weak
    "nn/source_location.py": ("_IS_USER_FILE",),  # by file of the user's
    "ops/op.py": ("_dialects",),
    "runtime/backends/custom_commands.py": ("_commands", "_ops"),  # by name of an operator
    "runtime/run_locks.py": ("_ALL_LOCKS",),  # weak
}
"""Containers of modules that are filled while the process runs, and what bounds each."""


class Stub:
    """Stands for something expensive. `alive` are those that somebody holds."""

    alive: ClassVar[WeakSet[Stub]] = WeakSet()

    def __init__(self, *_: Any, **named: Any) -> None:
        self.__dict__.update(named)
        Stub.alive.add(self)

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture(autouse=True)
def no_stubs() -> Iterator[None]:
    Stub.alive = WeakSet()
    yield
    Stub.alive = WeakSet()


def grown(use: Callable[[int], Any]) -> int:
    """Return the bytes that 1,000 lengths leave allocated beyond what 50 lengths leave."""
    use(FEW.start)  # what is imported, and kept once
    tracemalloc.start()
    try:
        found = []
        for lengths in (FEW, MANY):
            for n in lengths:
                use(n)
            gc.collect()
            found.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return found[1] - found[0]


def held(use: Callable[[int], Any]) -> tuple[int, int]:
    """Return how many stubs are alive after 50 lengths, and after 1,000 lengths more."""
    found = []
    for lengths in (FEW, MANY):
        for n in lengths:
            use(n)
        gc.collect()
        found.append(len(Stub.alive))
    return found[0], found[1]


def test_a_dynamic_graph_keeps_few_commands_numbers_and_blocks() -> None:
    d = sublet.DynamicGraph()

    def use(n: int) -> None:
        float((d.tensor(np.ones((n, 4), np.float32)) * (n + 0.5)).sum())

    assert grown(use) <= KEPT_BYTES
    made = d._eager
    assert len(made._used) <= eager_executor.MAX_CACHED_COMMANDS
    assert max(len(made._numbers), len(made._beside), len(made._literals)) <= eager_executor.MAX_CACHED_NUMBERS
    assert d.free_bytes <= KEPT_BYTES
    assert all(len(each.views) <= MAX_VIEWS_PER_BLOCK for blocks in made.pool.free.values() for each in blocks)


def test_a_dynamic_graph_keeps_few_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        control_flow_commands.ControlFlowCommand,
        "_build_executable",
        lambda self: Stub(views=self.written.node.defs[0]),
    )
    monkeypatch.setattr(
        control_flow_commands.ControlFlowCommand,
        "run",
        lambda self, inputs, pool: (
            setattr(self, "_executable", self._build_executable()) or list(map(pool.take, self.outputs))
        ),
    )
    d = sublet.DynamicGraph()

    def use(n: int) -> None:
        with d.no_grad(), d.while_({"h": d.tensor(np.ones(n, np.float32))}, rounds=2) as loop:
            loop.next(h=nn.tanh(loop["h"]))

    few, many = held(use)
    assert 0 < few <= many <= eager_executor.MAX_CACHED_PROGRAMS
    assert len(d._eager._programs) <= eager_executor.MAX_CACHED_PROGRAMS
    assert len(d._eager._used) <= eager_executor.MAX_CACHED_COMMANDS


def test_a_remembered_function_keeps_few_calls_and_plans() -> None:
    d = sublet.DynamicGraph(plans=3)

    @d.jit
    def loss(x: Any) -> Any:
        return nn.relu(x).sum()

    for n in (*FEW, *MANY):
        x = d.tensor(np.ones((n, 4), np.float32))
        for _ in range(2 if n % 300 == 1 or n > MANY.stop - 6 else 1):  # the second call is planned
            float(loss(x))
    del x
    plans = d._plans
    assert plans.made > plans.most == len(plans._used)
    assert len(plans._ends) == len(loss.root.children) == plans.most * CALLS_PER_PLAN
    moments = [each for each in gc.get_objects() if type(each) is TrieNode]
    ours = [each for each in moments if each.path()[:1] and each.path()[0] in loss.root.children]
    assert len(ours) <= len(plans._ends) * max(len(end.path()) for end in plans._ends)
    assert sum(each.plan is not None for each in ours) <= plans.most


@pytest.mark.skipif(not is_installed("onnxruntime"), reason="ONNX Runtime is not installed")
def test_a_node_of_unknown_shape_keeps_few_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    from sublet.integrations.onnx.kernels import backend

    monkeypatch.setattr(backend, "ArraySession", Stub)
    monkeypatch.setattr(backend, "ArrayCall", lambda session, read, written: session.close)
    x, y = (Value(name, Unplannable("known when it runs")) for name in "xy")
    node = Node("y", "onnx.com.microsoft.Gelu", (x,), (y,), {})
    kernel = backend.OnnxRuntime({"": 17, "com.microsoft": 1}).kernel(node, {})
    given = UnplannedCell("x")
    assert kernel is not None
    run = kernel.bind([given], [UnplannedCell("y")], None)

    def use(n: int) -> None:
        given.content = np.ones(n, np.float32)
        run()

    few, many = held(use)
    assert few == many == backend.MOST_SESSIONS


@pytest.mark.skipif(not is_installed("onnxruntime"), reason="ONNX Runtime is not installed")
def test_the_onnxruntime_backend_keeps_few_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    from sublet.integrations.onnx.kernels import backend

    monkeypatch.setattr(backend, "MOST_KINDS", 64)
    monkeypatch.setattr(backend, "kernels_of", lambda listing: ("Relu",))
    made = backend.OnnxRuntime({"": 17})

    def use(n: int) -> None:
        graph = sublet.parse(f"graph @g(%x: f32[{n}]) {{ %y: f32[{n}] = onnx.Relu(%x) return %y }}")
        assert made.kernel(graph.nodes[0], {}) is not None

    for n in (*FEW, *MANY):
        use(n)
    assert len(made._kinds) == 64


@pytest.mark.skipif(not is_installed("onnx"), reason="onnx is not installed")
def test_a_prepared_onnx_model_keeps_few_executables(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx import TensorProto, helper

    from sublet.integrations.onnx import onnx_backend

    monkeypatch.setattr(onnx_backend, "compile", Stub)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n",)) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", values[:1], values[1:])
    rep = onnx_backend.SubletRep(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), "auto", None)
    few, many = held(lambda n: rep.executable({"x": np.zeros(n, np.float32)}))
    assert few == many == onnx_backend.MAX_EXECUTABLES


@pytest.mark.skipif(not is_installed("torch"), reason="PyTorch is not installed")
def test_a_training_step_of_a_module_keeps_few_plans() -> None:
    import torch

    from sublet.integrations.torch.train.optimizers import cohorts_of
    from sublet.integrations.torch.train.step import MAX_PLANNED_STEPS
    from sublet.integrations.torch.train.step_tracing import StepArguments

    module = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    step = sublet.torch.train_step(module, torch.nn.functional.mse_loss, optimizer)
    nothing = SimpleNamespace(updated=(), lookups={})
    step._plan_step = lambda *_: Stub(step=nothing, bind_weights=lambda: None)  # type: ignore[assignment, method-assign]

    def use(n: int) -> None:
        step._bound_step(StepArguments(torch.zeros(n, 2), (torch.zeros(n, 1),), {}), *cohorts_of(optimizer, step._rule))

    few, many = held(use)
    assert few == many == len(step._steps) == MAX_PLANNED_STEPS


@pytest.mark.skipif(not is_installed("torch"), reason="PyTorch is not installed")
def test_a_graph_of_torch_compile_keeps_few_plans_and_reports() -> None:

    from sublet.integrations.torch.compile import compile_report

    backend = import_module("sublet.integrations.torch.compile.backend")

    pair = backend.CompiledRegion(backend.DEFAULT_OPTIONS, None)
    pair._make_plan = lambda args: (Stub(), compile_report.Compiled("forward", args[0]))  # type: ignore[assignment, method-assign]
    before = len(compile_report.report())
    few, many = held(lambda n: pair._plan_for([n]))
    assert few == many == len(pair._plans) == backend.MAX_PLANS
    told = compile_report.report()[before:]
    assert [each.nodes for each in told] == list(MANY)[-backend.MAX_PLANS :]
    for each in told:
        compile_report.remove_record(each)


def test_calls_of_operators_are_decoded_once_but_not_kept_for_ever() -> None:
    text = '{{"args":[{{"use":0,"as":[[{0},16],[16,1],0]}}],"kwargs":{{}},"outputs":[[[{0},16],[16,1],0]]}}'

    def use(n: int) -> None:
        for k in range(20):  # as many operators a graph
            operator_call._decode_text(text.format(n * 20 + k))

    operator_call._decode_text.cache_clear()
    assert grown(use) <= 32 << 20
    assert operator_call._decode_text.cache_info().currsize == operator_call.MAX_CACHED_CALLS
    operator_call._decode_text.cache_clear()


def test_what_autotune_measured_is_kept_in_few_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBLET_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "MOST_ENTRIES", 20)
    monkeypatch.setattr(
        tuning, "time_backends", lambda node, backends, constants: {each.name: 1.0 for each in backends}
    )
    tuner = tuning.Tuner([ReferenceBackend(), ReferenceBackend(name="other")], {})

    def use(n: int) -> None:
        graph = sublet.parse(f"graph @g(%x: f32[{n}]) {{ %y: f32[{n}] = nn.tanh(%x) return %y }}")
        assert tuner.choices(graph, {})

    for n in (*FEW, *MANY):
        use(n)
    folders = list((tmp_path / tuning.CACHE).iterdir())
    assert len(folders) == cache.MOST_ENTRIES
    monkeypatch.setenv("SUBLET_CACHE_BYTES", "4096")
    use(MANY.stop)
    left = [file.stat().st_size for file in (tmp_path / tuning.CACHE).rglob("*") if file.is_file()]
    assert 0 < sum(left) <= 4096


def test_actions_bound_by_round_are_few() -> None:
    memory: Any = SimpleNamespace(pointed={}, current_iterations={"loop": 0})
    strides: Any = {"v": (SimpleNamespace(loop="loop"),)}
    action = call_merging.LazyBinding(memory, (), {}, (), strides, Stub)  # type: ignore[arg-type]
    action.bind_now = lambda rounds=None: partial(Stub.close, Stub())  # type: ignore[assignment, method-assign]

    def use(n: int) -> None:
        memory.current_iterations["loop"] = n
        action()

    few, many = held(use)
    assert few == len(FEW)
    assert many == len(action._bound) == call_merging.MAX_BOUND_ACTIONS


@once
def trees() -> tuple[tuple[str, ast.Module], ...]:
    """Return every module of the package."""
    paths = sorted(SOURCE.rglob("*.py"))
    return tuple((path.relative_to(SOURCE).as_posix(), ast.parse(path.read_bytes())) for path in paths)


def test_functions_are_cached_with_a_limit() -> None:
    """A new cache without a limit is by something that inputs do not change, and named above."""
    found: dict[str, list[str]] = {}
    for name, tree in trees():
        for node in ast.walk(tree):
            for each in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                text = ast.unparse(each)
                if text.removeprefix("functools.") in ("cache", "lru_cache", "lru_cache(maxsize=None)"):
                    found.setdefault(name, []).append(node.name)
    assert {name: tuple(sorted(each)) for name, each in found.items()} == BY_NAME


def test_containers_of_modules_are_known() -> None:
    """Whatever fills a container of a module for ever is a leak: what bounds each is said above."""
    empty = ("{}", "[]", "set()", "dict()", "list()", "deque()", "OrderedDict()", "WeakSet()", "Counter()")
    found: dict[str, list[str]] = {}
    for name, tree in trees():
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                (target, *_) = node.targets if isinstance(node, ast.Assign) else [node.target]
                constant = ast.unparse(target).isupper() and "Weak" not in ast.unparse(node.value)
                if ast.unparse(node.value) in empty and (not constant or ast.unparse(target).startswith("_")):
                    found.setdefault(name, []).append(ast.unparse(target))
    assert {name: tuple(sorted(each)) for name, each in found.items()} == CONTAINERS
