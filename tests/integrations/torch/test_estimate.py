"""Estimates of memory: the eager peak beside PyTorch's allocator, arenas beside the arenas of compiled calls."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sublet
from sublet.base.errors import ModelError
from sublet.base.formatting import human
from sublet.plan.verdict import buffers_at_peak
from tests.support.command_line import Cli

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from benchmarks.train_table import eager_peak  # noqa: E402

cross_entropy = nn.functional.cross_entropy


class Attention(nn.Module):
    """Self-attention with a residual, whose layers have paths."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.result, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: Any) -> Any:
        q, k, v = (part.unflatten(2, (4, 8)).transpose(1, 2) for part in self.queries(self.norm(x)).chunk(3, 2))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.result(y.transpose(1, 2).flatten(2))


def perceptron() -> Any:
    return nn.Sequential(*[each for _ in range(8) for each in (nn.Linear(128, 128), nn.GELU())], nn.Linear(128, 10))


def convolutions() -> Any:
    layers = [(nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for i in range(4)]
    return nn.Sequential(*[each for layer in layers for each in layer], nn.Flatten(), nn.Linear(16 * 256, 10))


def patches() -> Any:
    return nn.Sequential(nn.Conv2d(3, 32, 16, 16), nn.Flatten(), nn.Linear(32 * 16, 10))


def digits() -> Any:
    first, second = nn.Conv2d(1, 8, 5, padding=2), nn.Conv2d(8, 16, 3, stride=2, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(16 * 14 * 14, 10))


def attention() -> Any:
    return nn.Sequential(Attention(), Attention(), nn.Flatten(), nn.Linear(64 * 32, 10))


class Scan(nn.Module):
    """A recurrence over rows of a tensor, whose gradients autograd sums. Fake tensors need more bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.result = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        decay = x.sigmoid() * self.result.weight.sum()
        if isinstance(x, torch._subclasses.FakeTensor):
            decay = torch.cat([decay, decay], 1).exp()
        state = torch.zeros_like(x[:, 0])
        for row in range(x.shape[1]):
            state = decay[:, row] * state + x[:, row]
        return self.result(state)


class Recurrent(nn.Module):
    """Two layers of an LSTM, whose kernels of oneDNN keep a workspace."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.result = nn.LSTM(32, 64, 2, batch_first=True), nn.Linear(16 * 64, 1000)

    def forward(self, x: Any) -> Any:
        return self.result(self.layers(x)[0].flatten(1))


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "perceptron": (perceptron, (128,)),
    "convolutions": (convolutions, (3, 16, 16)),
    "attention": (attention, (64, 32)),
    "patches": (patches, (3, 64, 64)),
    "digits": (digits, (1, 28, 28)),
}
RECURRENCES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "scan": (Scan, (16, 64)),
    "lstm": (Recurrent, (16, 32)),
}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 1e-3),
    "SGD": lambda parameters: torch.optim.SGD(parameters, 1e-3, momentum=0.9),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, 1e-3),
}


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


def made(name: str, device: str, batch: int = 32) -> tuple[Any, Any, Any]:
    """Return a network, its input and its labels on a device."""
    network, extents = {**NETWORKS, **RECURRENCES}[name]
    torch.manual_seed(0)
    with torch.device(device):
        return network(), torch.zeros(batch, *extents), torch.zeros(batch, dtype=torch.int64)


@pytest.mark.parametrize("name", [*NETWORKS, *RECURRENCES])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_eager_peak_is_that_of_the_allocator(name: str, kind: str) -> None:
    on_meta, x, labels = made(name, "meta")
    found = sublet.torch.estimate(
        on_meta, cross_entropy, OPTIMIZERS[kind](on_meta.parameters()), x, (labels,), plan=False
    ).eager
    module, x, labels = made(name, "cpu")
    optimizer = OPTIMIZERS[kind](module.parameters())

    def step() -> None:
        cross_entropy(module(x), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    assert found.peak_bytes - found.resident_bytes == pytest.approx(eager_peak(step), rel=0.03)
    state = [each for own in optimizer.state.values() for each in own.values()]
    assert found.resident["optimizer state"] == sum(each.untyped_storage().nbytes() for each in state)
    assert found.gradients == sum(each.nbytes for each in module.parameters())
    assert sum(each.nbytes for each in found.live) == found.peak_bytes


@pytest.mark.parametrize("name", NETWORKS)
def test_the_eager_peak_of_an_inference_is_that_of_the_allocator(name: str) -> None:
    on_meta, x, _ = made(name, "meta")
    found = sublet.torch.estimate(on_meta.eval(), None, None, x, plan=False).eager
    module, x, _ = made(name, "cpu")

    def infer() -> None:
        with torch.no_grad():
            module(x)

    module.eval()
    assert found.peak_bytes - found.resident_bytes == pytest.approx(eager_peak(infer), rel=0.03)
    assert found.gradients == 0


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("training", [True, False])
def test_the_planned_arena_is_that_of_the_compiled_call(name: str, training: bool) -> None:
    on_meta, x, labels = made(name, "meta")
    on_meta.train(training)
    found = sublet.torch.estimate(on_meta, cross_entropy if training else None, None, x, (labels,) if training else ())
    module, x, labels = made(name, "cpu")
    module.train(training)
    torch._dynamo.reset()
    before = len(sublet.torch.report())
    with torch.set_grad_enabled(training):
        compiled = torch.compile(
            lambda x, labels: cross_entropy(module(x), labels) if training else module(x), backend="sublet"
        )
        result = compiled(x, labels)
        if training:
            result.backward()
    plans = [each.plan for each in sublet.torch.report()[before:]]
    assert found.sublet is not None
    assert [each.arena_bytes for each in found.sublet.plans] == [each.arena_bytes for each in plans if each is not None]
    assert found.sublet.peak_bytes == (
        found.sublet.arena_bytes
        + found.eager.resident_bytes
        + found.eager.gradients
        + found.eager.results
        + found.sublet.allocated_bytes
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_the_bytes_beside_the_arena_are_those_of_the_allocator(name: str) -> None:
    on_meta, x, labels = made(name, "meta")
    found = sublet.torch.estimate(on_meta, cross_entropy, None, x, (labels,))
    module, x, labels = made(name, "cpu")
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, labels: cross_entropy(module(x), labels), backend="sublet")

    def step() -> None:
        compiled(x, labels).backward()

    assert found.sublet is not None
    beside = found.eager.gradients + found.eager.results + found.sublet.allocated_bytes
    measured = eager_peak(step)
    assert measured / 1.03 <= beside <= 1.1 * measured  # all gradients count beside the largest kernel


def test_gradients_of_a_convolution_belong_to_the_convolution_and_the_loss_to_no_line() -> None:
    module, x, labels = made("convolutions", "meta")
    optimizer = torch.optim.SGD(module.parameters(), 1e-3)
    kinds = {name: type(each).__name__ for name, each in module.named_modules()}
    alive = sublet.torch.estimate(module, cross_entropy, optimizer, x, (labels,)).eager.live
    gradients = [each for each in alive if each.operator.startswith("aten.convolution_backward") and each.module]
    assert gradients
    assert {kinds[each.module] for each in gradients} == {"Conv2d"}
    assert {each.line.partition(":")[0] for each in alive} <= {"", "test_estimate.py"}


def test_module_and_optimizer_are_unchanged() -> None:
    module, x, labels = made("convolutions", "cpu")
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    before = {name: (each, each.clone()) for name, each in module.state_dict(keep_vars=True).items()}
    random = torch.get_rng_state()
    sublet.torch.estimate(module, cross_entropy, optimizer, x, (labels,))
    for name, each in module.state_dict(keep_vars=True).items():
        assert each is before[name][0]
        assert torch.equal(each, before[name][1])
        assert each.grad is None
    assert not optimizer.state
    assert torch.equal(random, torch.get_rng_state())


def test_within_a_memory_the_arena_of_the_budget_is_that_of_the_compiled_call() -> None:
    module, x, labels = made("perceptron", "cpu", 256)
    plain = sublet.torch.estimate(module, cross_entropy, None, x, (labels,)).sublet
    assert plain is not None
    memory = plain.peak_bytes - plain.arena_bytes * 3 // 10
    found = sublet.torch.estimate(module, cross_entropy, None, x, (labels,), memory=memory)
    assert found.fits
    assert found.budgeted is not None
    assert found.budgeted.peak_bytes <= memory < plain.peak_bytes
    assert found.budgeted.extra_time > 0
    assert "eager no" in found.verdict
    torch._dynamo.reset()
    before = len(sublet.torch.report())
    budget = memory - (plain.peak_bytes - plain.arena_bytes)
    compiled = torch.compile(
        lambda x, labels: cross_entropy(module(x), labels), backend="sublet", options={"budget": budget}
    )
    compiled(x, labels).backward()
    (record,) = sublet.torch.report()[before:]
    assert record.plan is not None
    assert record.plan.arena_bytes == found.budgeted.arena_bytes


@pytest.mark.parametrize("name", [*NETWORKS, "lstm"])
@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_the_arena_of_a_whole_step_is_that_of_train_step(name: str, kind: str) -> None:
    on_meta, x, labels = made(name, "meta")
    optimizer = OPTIMIZERS[kind](on_meta.parameters())
    found = sublet.torch.estimate(on_meta, cross_entropy, optimizer, x, (labels,), step="train_step").sublet
    assert found is not None
    module, x, labels = made(name, "cpu")
    step = sublet.torch.train_step(module, cross_entropy, OPTIMIZERS[kind](module.parameters()))
    step(x, labels)  # makes the optimizer's state
    measured = eager_peak(lambda: step(x, labels))
    assert step.plan is not None
    assert found.arena_bytes == step.plan.arena_bytes
    assert measured <= 1.05 * found.allocated_bytes + 4096  # workspace of an attention; numbers of the optimizer


def test_a_whole_step_needs_no_gradients_outside_of_the_arena() -> None:
    module, x, labels = made("perceptron", "meta")
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    found = sublet.torch.estimate(module, cross_entropy, optimizer, x, (labels,), step="train_step")
    assert found.sublet is not None
    outside = found.eager.resident_bytes + found.eager.results + found.sublet.allocated_bytes
    assert found.sublet.peak_bytes == found.sublet.arena_bytes + outside
    assert "peak, train_step" in str(found)
    assert "without gradients" in str(found)


def test_within_a_memory_the_arena_of_a_whole_step_is_that_of_train_step() -> None:
    module, x, labels = made("perceptron", "cpu", 256)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    plain = sublet.torch.estimate(module, cross_entropy, optimizer, x, (labels,), step="train_step").sublet
    assert plain is not None
    memory = plain.peak_bytes - plain.arena_bytes // 8
    found = sublet.torch.estimate(module, cross_entropy, optimizer, x, (labels,), memory=memory, step="train_step")
    assert found.budgeted is not None
    assert found.budgeted.peak_bytes <= memory
    assert f"train_step(..., budget={found.budgeted.budget})" in str(found)
    step = sublet.torch.train_step(module, cross_entropy, optimizer, budget=found.budgeted.budget)
    step(x, labels)
    assert step.plan is not None
    assert step.plan.arena_bytes == found.budgeted.arena_bytes


def test_a_whole_step_without_optimizer_or_with_kernels_of_inductor_is_refused() -> None:
    module, x, labels = made("perceptron", "meta")
    found = sublet.torch.estimate(module, cross_entropy, None, x, (labels,), step="train_step")
    assert found.sublet is None
    assert "needs a loss and an optimizer" in found.reason
    found = sublet.torch.estimate(
        module, cross_entropy, torch.optim.Adagrad(module.parameters()), x, (labels,), step="train_step"
    )
    assert found.sublet is None
    assert "Adagrad" in found.reason
    for options in ({"step": "train_step", "kernels": "inductor"}, {"step": "loop"}):
        with pytest.raises(ModelError, match="step="):
            sublet.torch.estimate(module, cross_entropy, None, x, (labels,), **options)


def test_a_refused_memory_names_a_memory_that_is_met() -> None:
    """The memory counts all bytes together, the search only those of one arena."""
    module = nn.Sequential(*[each for _ in range(3) for each in (nn.Linear(16, 16), nn.GELU())])
    arguments = module, lambda y: y.square().mean(), None, torch.randn(64, 16)
    plain = sublet.torch.estimate(*arguments).sublet
    assert plain is not None
    named = None
    for percent in range(90, 0, -10):
        memory = plain.peak_bytes - plain.arena_bytes * (100 - percent) // 100
        refused = sublet.torch.estimate(*arguments, memory=memory)
        named = re.search(r"so ([0-9,]+) bytes for all together are enough", refused.reason)
        if named:
            break
    assert named, "a memory must be refused without a proof"
    least = int(named[1].replace(",", ""))
    assert memory < least < plain.peak_bytes
    assert sublet.torch.estimate(*arguments, memory=least).fits


def test_a_memory_below_the_weights_fits_nothing() -> None:
    module, x, labels = made("perceptron", "meta")
    found = sublet.torch.estimate(module, cross_entropy, None, x, (labels,), memory="64KiB")
    assert found.fits is False
    assert "outside of the arena" in str(found)


def test_tensors_at_the_peak_have_the_path_of_the_module_and_the_line() -> None:
    module, x, labels = made("attention", "meta")
    found = sublet.torch.estimate(module, cross_entropy, None, x, (labels,), plan=False).eager
    assert {each.module for each in found.live} >= {"0.norm", "0.queries", "1.queries"}
    assert any(each.line.startswith("test_estimate.py:") for each in found.live)


class Asking(nn.Module):
    """A module that computes in another way if its positions are not consecutive, as decoders of transformers do."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first, self.result = first, nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        positions = torch.arange(self.first, 5, device=x.device)
        positions[0] *= 2
        if (positions.diff() == 1).all():
            return self.result(x)
        return torch.cat([self.result(x), x], 0).exp().sin()


@pytest.mark.parametrize("first", [0, 1])
def test_a_question_about_contents_without_an_argument_has_the_real_answer(first: int) -> None:
    module, x = Asking(first), torch.randn(512, 64)

    def step() -> None:
        module(x).square().sum().backward()
        module.zero_grad()

    found = sublet.torch.estimate(module, lambda y: y.square().sum(), None, x, plan=False).eager
    assert found.peak_bytes - found.resident_bytes == pytest.approx(eager_peak(step), rel=0.01)


def test_a_step_that_reads_contents_is_refused() -> None:
    class Reads(nn.Module):
        def forward(self, x: Any) -> Any:
            return x[x.nonzero()[:, 0]]

    with pytest.raises(ModelError, match="without content"):
        sublet.torch.estimate(Reads(), None, None, torch.zeros(4, 4), plan=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_device_that_is_not_there_is_refused() -> None:
    module, x, _ = made("perceptron", "meta")
    with pytest.raises(ModelError, match="where PyTorch finds a GPU"):
        sublet.torch.estimate(module, None, None, x, device="cuda")


def test_the_text_names_module_and_operator_of_the_buffers_at_the_peak_of_the_arena() -> None:
    module = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).to("meta")
    found = sublet.torch.estimate(module, lambda y: y.square().mean(), None, torch.empty(128, 64, device="meta"))
    assert found.sublet is not None
    lines = str(found).partition("alive at the peak of Sublet's arena")[2].splitlines()
    [plan] = found.sublet.plans
    largest = buffers_at_peak(plan)[0]
    assert lines[0] == f", {human(plan.peak.nbytes)}:"
    assert lines[1].split()[:2] == human(largest.nbytes).split()
    assert re.search(r"  [02](, [a-z_]+\.py:\d+)?, (aten|nn)\.", lines[1])


def test_the_text_has_one_line_for_layers_of_equal_bytes() -> None:
    module = nn.ModuleDict({"layers": nn.Sequential(*[Attention() for _ in range(6)])}).to("meta")
    module.forward = lambda x: module["layers"](x)
    found = sublet.torch.estimate(module, lambda y: y.square().mean(), None, torch.empty(16, 64, 32, device="meta"))
    eager, arena = str(found).split("alive at the peak of ")[1:]
    assert re.search(r"  forward  layers\.\*\.queries aten\.addmm\.default test_estimate\.py:\d+ \(6 tensors\)", eager)
    assert re.search(r"  layers\.\*\.queries, test_estimate\.py:\d+, ", arena)
    assert "more lines" not in eager + arena


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    module, x, labels = made("perceptron", "meta", 4)
    lines: list[str] = []
    found = sublet.torch.largest_batch(module, cross_entropy, None, x, (labels,), memory="4MiB", progress=lines.append)
    assert found.sublet is not None
    assert lines[0].startswith("eager: a batch of 4 fits 4 MiB")
    for count, verdict in ((found.sublet, "fits"), (found.sublet + 1, "does not fit")):
        assert f"Sublet: a batch of {count} {verdict} 4 MiB" in lines
    assert 4 < found.eager < found.sublet

    def needs(count: int) -> tuple[int, int]:
        module, x, labels = made("perceptron", "meta", count)
        each = sublet.torch.estimate(module, cross_entropy, None, x, (labels,))
        assert each.sublet is not None
        return each.eager.peak_bytes, each.sublet.peak_bytes

    assert needs(found.eager)[0] <= found.memory < needs(found.eager + 1)[0]
    assert needs(found.sublet)[1] <= found.memory < needs(found.sublet + 1)[1]
    assert sublet.torch.largest_batch(module, None, None, x, memory=10).eager == 0


def test_the_largest_batch_of_a_whole_step_is_larger() -> None:
    module, x, labels = made("perceptron", "meta", 4)
    optimizer = torch.optim.SGD(module.parameters(), 1e-3)
    compiled, whole = (
        sublet.torch.largest_batch(module, cross_entropy, optimizer, x, (labels,), memory="2MiB", step=step).sublet
        for step in ("compile", "train_step")
    )
    assert compiled is not None
    assert whole is not None
    assert compiled < whole


def test_the_frontier_falls_in_bytes_and_rises_in_time(tmp_path: Any) -> None:
    module, x, labels = made("perceptron", "meta", 256)
    budgets: list[int] = []
    percents = (100, 80, 60, 1)
    arguments = module, cross_entropy, None, x, (labels,)
    found = sublet.torch.frontier(*arguments, percents=percents, progress=budgets.append)
    assert budgets == [each.budget for each in found.results]
    programs = [each.program for each in found.results]
    assert [each.nbytes for each in programs] == sorted((each.nbytes for each in programs), reverse=True)
    assert [each.seconds for each in programs] == sorted(each.seconds for each in programs)
    assert programs[2].nbytes <= 0.6 * programs[0].nbytes
    assert "impossible" in str(found)
    assert found._repr_html_().count("<tr>") == 5
    found.write_html(tmp_path / "page.html")
    assert "curve" in (tmp_path / "page.html").read_text()


SCRIPT = """
import torch
from module_beside_the_script import layers

def build():
    module = torch.nn.Sequential(*layers(8))
    optimizer = torch.optim.AdamW(module.parameters())
    return module, torch.nn.functional.mse_loss, optimizer, torch.empty(256, 64), (torch.empty(256, 64),)

def short():
    return 1, 2
"""


BESIDE = """
import torch

def layers(count):
    return [torch.nn.Linear(64, 64) for _ in range(count)]
"""


def test_the_command_prints_estimate_verdict_and_frontier(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "module_beside_the_script.py").write_text(BESIDE)
    status, out, _ = cli("plan", f"{script}:build", "--train", "--budget", "100MiB")
    assert status == 0
    assert "eager yes" in out
    status, out, _ = cli("plan", f"{script}:build", "--train", "--budget", "1K", "--json")
    found = json.loads(out)
    assert status == 1
    assert found["fits"] is False
    assert found["eager"]["peak_bytes"] == sum(each["nbytes"] for each in found["eager"]["live"])
    status, out, _ = cli("plan", f"{script}:build", "--train", "--frontier", "--html", tmp_path / "page.html")
    assert status == 0
    assert "impossible" in out
    assert (tmp_path / "page.html").exists()
    status, _, err = cli("plan", f"{script}:short", "--train")
    assert status == 2
    assert "expected module, loss, optimizer, inputs" in err
    assert "only --html" in cli("plan", f"{script}:build", "--train", "--out", "x.json")[2]
    status, out, _ = cli("plan", f"{script}:build", "--train", "--kernels", "inductor", "--json")
    assert status == 0
    assert json.loads(out)["sublet"]["arena_bytes"] > 0
    status, out, _ = cli("plan", f"{script}:build", "--train", "--step", "train_step", "--json")
    assert status == 0
    assert json.loads(out)["sublet"]["step"] == "train_step"
    assert "drop --step" in cli("plan", f"{script}:build", "--step", "train_step")[2]
    for options in (["--train", "--frontier"], []):
        status, _, err = cli("plan", f"{script}:build", "--kernels", "inductor", *options)
        assert status == 2
        assert "drop --kernels" in err
    for option in ("--advise", "--measure"):
        assert cli("plan", f"{script}:build", "--train", option)[0] == 2


class Caching(nn.Module):
    """A layer that keeps a table, a list and a number between calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table, self.calls, self.seen = nn.Linear(8, 8), None, 0, [0]

    def forward(self, x: Any) -> Any:
        if self.table is None:
            self.table = torch.arange(8.0)
        self.calls += 1
        self.seen.append(self.calls)
        return self.layer(x) + self.table


@pytest.mark.parametrize("options", [{"plan": False}, {}, {"step": "train_step"}])
def test_an_estimate_changes_no_attribute_of_the_module(options: dict[str, Any]) -> None:
    module, x, labels = Caching(), torch.randn(4, 8), torch.zeros(4, dtype=torch.int64)
    optimizer, seen = torch.optim.SGD(module.parameters(), 0.1), module.seen
    sublet.torch.estimate(module, cross_entropy, optimizer, x, (labels,), **options)
    assert (module.table, module.calls, module.seen) == (None, 0, [0])
    assert module.seen is seen
    assert torch.isfinite(cross_entropy(module(x), labels))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        return self.last(self.layer(x)[0][:, -1])


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        return self.layer(x) if torch.rand([]) < 0.5 else x + self.layer.bias


@pytest.mark.parametrize(
    ("module", "words"), [(Recurrent(), "breaks the graph: .*RNN"), (Dropping(), "cannot trace the step")]
)
def test_code_outside_of_graphs_leaves_the_eager_peak_alone(module: Any, words: str) -> None:
    """Dynamo leaves recurrent layers, and branches on contents, to PyTorch: no plan counts the tensors there."""
    x, labels = torch.randn(4, 20, 16), torch.zeros(4, dtype=torch.int64)
    inputs = x if isinstance(module, Recurrent) else x[:, 0]
    found = sublet.torch.estimate(module, cross_entropy, None, inputs, (labels,), memory="1MiB")
    assert found.sublet is None
    assert re.search(words, found.reason)
    assert found.eager.peak_bytes > 0
    batch = sublet.torch.largest_batch(module, cross_entropy, None, inputs, (labels,), memory="1MiB")
    assert batch.sublet is None
    assert re.search(words, str(batch))
    with pytest.raises(ModelError, match=words):
        sublet.torch.frontier(module, cross_entropy, None, inputs, (labels,))


CONVOLUTIONS = [
    (1, 8, 5, 1), (3, 8, 3, 1), (4, 4, 3, 1), (6, 10, 3, 1), (8, 16, 3, 2), (8, 32, 1, 1), (12, 16, 3, 1),
    (16, 8, 3, 1), (24, 24, 3, 1), (32, 32, 1, 1), (20, 40, 3, 2), (1, 32, 3, 1),
]  # fmt: skip
"""Channels of the image and of the result, extent of the window, stride."""

MEASURE = """
import sys, torch
from benchmarks.train_table import eager_peak
from sublet.integrations.torch.kernel_effects import workspace_bytes
from tests.integrations.torch.test_estimate import CONVOLUTIONS
torch.set_num_threads(1)
for inner, outer, window, stride in CONVOLUTIONS:
    image, weight, bias = torch.randn(16, inner, 28, 28), torch.randn(outer, inner, window, window), torch.randn(outer)
    options = [stride] * 2, [window // 2] * 2, [1, 1], False, [0, 0], 1
    forward, backward = torch.ops.aten.convolution, torch.ops.aten.convolution_backward
    result = forward(image, weight, bias, *options)
    gradient = torch.randn_like(result)
    given = gradient, image, weight, [outer], *options, [True] * 3
    for name, args, run in (
        ("aten.convolution.default", (image, weight, bias, *options), lambda: forward(image, weight, bias, *options)),
        ("aten.convolution_backward.default", given, lambda: backward(*given)),
    ):
        made = run()
        results = sum(each.nbytes for each in (made if isinstance(made, tuple) else (made,)))
        measured, counted = eager_peak(run), results + workspace_bytes(name, args, made)
        assert abs(measured - counted) <= 0.01 * measured + 1024, (name, inner, outer, window, measured, counted)
print(torch.backends.cpu.get_cpu_capability())
"""


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_the_copies_of_convolutions_are_those_of_the_allocator(capability: str) -> None:
    """oneDNN's blocks have as many channels as the registers of the processor have elements."""
    limits = {} if capability == "default" else {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = [sys.executable, "-W", "ignore", "-c", MEASURE]
    done = subprocess.run(
        command,
        env={**os.environ, **limits},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
