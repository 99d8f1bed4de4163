"""`options={"kernels": "inductor"}`: Sublet divides the graph, Inductor generates the kernels."""

from __future__ import annotations

import copy
import gc
import importlib
import os
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

import sublet

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))):
    pytest.skip("Inductor needs a C++ compiler", allow_module_level=True)

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from sublet.integrations.torch.compile import inductor_kernels, inductor_memory, loss_rows  # noqa: E402
from sublet.integrations.torch.compile.compile_report import CompiledByInductor, Lowering  # noqa: E402
from sublet.integrations.torch.compile.inductor_kernels import Division, InductorCompilation  # noqa: E402
from sublet.integrations.torch.compile.inductor_memory import PassMemory, step_memory  # noqa: E402
from tests.integrations.torch.test_compile_budget import Average  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
F = nn.functional


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    """Forget compiled code: Dynamo compiles one function a limited number of times."""
    torch._dynamo.reset()


@pytest.fixture(autouse=True, scope="module")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Keep compiled kernels of this module in a folder of its own."""
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))
    yield
    if before is None:
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]
    else:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = before


class Residual(nn.Module):
    """A block of two linear layers around a GELU, with dropout."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(self, x: Any) -> Any:
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), self.dropout, self.training)


def perceptron(dropout: float = 0.0, blocks: int = 3) -> Any:
    return nn.Sequential(*[Residual(32, dropout) for _ in range(blocks)])


def linears() -> Any:
    return nn.Sequential(*[each for _ in range(3) for each in (nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))])


def convolutions() -> Any:
    layers = [(nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for i in range(2)]
    return nn.Sequential(*[each for layer in layers for each in layer], nn.Flatten(), nn.Linear(8 * 144, 4))


def averages() -> Any:
    return nn.Sequential(*[each for _ in range(2) for each in (nn.Linear(32, 32), Average(32), nn.Tanh())])


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "perceptron": (perceptron, (128, 32)),
    "convolutions": (convolutions, (32, 3, 12, 12)),
    "averages": (averages, (128, 32)),
    "dropout": (lambda: perceptron(0.3, 2), (128, 32)),
}


def compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend="sublet", options={"kernels": "inductor", **options})


def record_of(run: Callable[[], Any]) -> CompiledByInductor:
    """Return the record added by a call."""
    before = set(map(id, sublet.torch.report()))
    run()
    [record] = [each for each in sublet.torch.report() if id(each) not in before]
    assert isinstance(record, CompiledByInductor)
    return record


def peak_by_inductor(module: Any, *given: Any, merges: bool = True) -> int:
    """Return the peak of live bytes of a step divided by Inductor itself."""
    peaks = []

    def lower(graph: Any, example: Any) -> Any:
        compilation = InductorCompilation(graph, example)
        memory = compilation._lower(compilation._theirs, merges).memory
        assert memory is not None
        peaks.append(memory.peak)
        return graph

    torch._dynamo.reset()
    torch.compile(module, backend=lower)(*given)
    torch._dynamo.reset()
    [peak] = peaks
    return peak


def gradients(module: Any, run: Any, x: Any) -> list[Any]:
    """Return the gradients of one step, under a fixed seed."""
    torch.manual_seed(3)
    run(x).square().mean().backward()
    found = [each.grad.double() for each in module.parameters()]
    module.zero_grad()
    return found


def distance(found: list[Any], wanted: list[Any]) -> float:
    """Return the largest distance of two lists of gradients, relative to the largest value of each gradient."""
    return max(float((a - b).abs().max() / (b.abs().max() + 1e-30)) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_and_statistics_are_those_of_inductor(name: str) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    module, x = make().train(), torch.randn(shape)
    sides = [copy.deepcopy(module) for _ in range(3)]
    plain = gradients(sides[0], torch.compile(sides[0], backend="inductor"), x)
    torch._dynamo.reset()
    records, found = [], []
    # Most tensors of "averages" read a changed buffer; workspaces of convolutions do not shrink.
    shares = (None, {"averages": None, "convolutions": 0.85}.get(name, 0.8))
    for side, share in zip(sides[1:], shares, strict=True):
        budget = {} if share is None else {"budget": int(share * records[0].peak_bytes)}
        run = compiled(side, **budget)
        records.append(record_of(lambda side=side, run=run: found.append(gradients(side, run, x))))
        torch._dynamo.reset()
    assert all(not each.reason and each.peak_bytes for each in records)
    assert records[0].peak_bytes <= peak_by_inductor(copy.deepcopy(module), x)
    assert records[0].saved_bytes < records[0].inductor_saved
    if shares[1]:
        assert records[1].again
        assert records[1].peak_bytes <= shares[1] * records[0].peak_bytes
    if name == "dropout":  # no eager run draws the numbers of Inductor
        assert all(distance(each, plain) < 1e-5 for each in found)
    else:
        exact = copy.deepcopy(module).double()
        wanted = gradients(exact, exact, x.double())
        eager = copy.deepcopy(module)
        allowed = 2 * max(distance(gradients(eager, eager, x), wanted), distance(plain, wanted)) + 1e-6
        assert all(distance(each, wanted) <= allowed for each in found)
    for side in sides[1:]:
        for (key, each), other in zip(side.named_buffers(), sides[0].buffers(), strict=True):
            assert torch.allclose(each, other, atol=1e-5), key


def test_peaks_are_monotone_in_the_budget_and_the_refusal_names_the_smallest() -> None:
    torch.manual_seed(0)
    module, x = linears(), torch.randn(128, 32)
    with pytest.raises(Exception, match=r"the budget is 1,000 bytes\. The smallest peak found .* Raise the budget to"):
        compiled(module, budget=1000)(x)
    torch._dynamo.reset()
    plain = record_of(lambda: compiled(module)(x).sum().backward())
    assert plain.peak_bytes
    peaks = []
    for share in (0.75, 1.0):
        torch._dynamo.reset()
        budget = int(share * plain.peak_bytes)
        record = record_of(lambda budget=budget: compiled(module, budget=budget)(x))
        assert record.peak_bytes
        assert record.peak_bytes <= budget
        peaks.append(record.peak_bytes)
    assert peaks == sorted(peaks)
    assert peaks[1] == plain.peak_bytes
    assert f"{record.nodes} operators by Inductor's kernels, peak" in str(record)


def test_a_graph_may_run_backwards_as_often_as_with_inductor() -> None:
    torch.manual_seed(0)
    module, x = linears(), torch.randn(128, 32)

    def outcomes(run: Any) -> list[Any]:
        """Return the gradients of two backward passes over one graph, or the error of PyTorch."""
        loss = run(x).square().mean()
        found: list[Any] = []
        for retained in (True, False):
            try:
                loss.backward(retain_graph=retained)
                found.append([each.grad.clone() for each in module.parameters()])
            except RuntimeError as error:
                found.append(type(error))
        module.zero_grad()
        return found

    theirs = outcomes(torch.compile(module, backend="inductor"))
    torch._dynamo.reset()
    ours = outcomes(compiled(module))
    for one, other in zip(ours, theirs, strict=True):
        assert isinstance(one, list) == isinstance(other, list)
        if isinstance(one, list):
            assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(one, other, strict=True))


def test_two_calls_in_flight_inference_and_a_hit_in_the_cache() -> None:
    torch.manual_seed(0)
    module = linears()
    xs = [torch.randn(128, 32) for _ in range(2)]
    run = compiled(module)
    first = record_of(lambda: run(xs[0]))
    assert "peak unknown: PyTorch compiles the backward pass at its first run" in str(first)
    losses = [run(x).square().mean() for x in xs]
    grads = []
    for loss in losses:
        loss.backward()
        grads.append([each.grad.clone() for each in module.parameters()])
        module.zero_grad()
    for x, found in zip(xs, grads, strict=True):
        module(x).square().mean().backward()
        assert all(torch.allclose(a, each.grad, atol=1e-5) for a, each in zip(found, module.parameters(), strict=True))
        module.zero_grad()
    with torch.no_grad():
        inference = record_of(lambda: run(xs[0]))
        assert torch.allclose(run(xs[0]), module(xs[0]), atol=1e-5)
    assert inference.name == "forward"
    assert inference.peak_bytes
    assert not inference.saved_bytes
    torch._dynamo.reset()
    before = torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"]
    again = record_of(lambda: compiled(module)(xs[0]).sum().backward())
    assert torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"] > before
    assert again == first
    assert first.peak_bytes


class Tagger(nn.Module):
    """A recurrent layer, left to eager PyTorch by Dynamo, and a linear layer; keeps a weak reference to the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 64)
        self.logits: list[Any] = []

    def forward(self, x: Any) -> Any:
        logits = self.head(self.layer(x)[0])
        self.logits.append(weakref.ref(logits))
        return logits


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_a_compiled_graph_keeps_no_example_alive() -> None:
    """Dynamo passes the arguments of the first call as an example: here the logits, computed outside of the graph."""
    torch.manual_seed(0)
    module = Tagger()
    call = compiled(lambda x: F.gelu(module(x)).square().mean())
    for _ in range(2):
        call(torch.randn(8, 16, 16)).backward()
    gc.collect()
    assert [each() for each in module.logits] == [None, None]


def test_no_constant_is_saved_for_the_backward() -> None:
    """A saved number would be read by the kernels. The forward pass saves what Inductor's own division saves."""
    labels, x = torch.randint(0, 500, (64,)), torch.randn(64, 500, requires_grad=True)
    record = record_of(lambda: compiled(lambda x: F.cross_entropy(x, labels))(x).backward())
    assert record.saved_bytes == record.inductor_saved == 2 * 4 * 64 + 4


def test_two_divisions_of_about_equal_saved_bytes_are_lowered_and_the_smaller_peak_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    module, x = linears(), torch.randn(128, 32)
    for ours, theirs in ((1.0, 2.0), (2.0, 1.0)):
        torch._dynamo.reset()
        monkeypatch.setattr(InductorCompilation, "_is_sure", False)
        scale = {"sublet": ours, "inductor": theirs}
        monkeypatch.setattr(Division, "peak", property(lambda each, scale=scale: scale[each.origin]))
        record = record_of(lambda: compiled(module)(x).sum().backward())
        assert record.division == ("sublet" if ours < theirs else "inductor")
        assert (record.saved_bytes < (record.inductor_saved or 0)) == (ours < theirs)


def test_a_second_process_hits_the_cache_and_reads_the_same_peak(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sublet, torch\n"
        "module = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))\n"
        'run = torch.compile(module, backend="sublet", options={"kernels": "inductor"})\n'
        "run(torch.ones(64, 16)).sum().backward()\n"
        'hits = torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"]\n'
        "print(hits, sublet.torch.report()[0].peak_bytes)\n"
    )
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    runs = [
        subprocess.run([sys.executable, "-W", "ignore", str(program)], env=environment, capture_output=True, text=True)
        for _ in range(2)
    ]
    (no_hits, first), (hits, second) = (each.stdout.split() for each in runs)
    assert (no_hits, int(hits) > 0) == ("0", True), runs[1].stderr
    assert first == second != "None"


@pytest.mark.parametrize("make", [perceptron, convolutions])
def test_inductor_knows_the_parameters_of_a_divided_graph(make: Callable[[], Any]) -> None:
    found: dict[str, list[Any]] = {"inductor": [], "sublet": []}

    def backend(module: Any, example: Any) -> Any:
        compile_fx = importlib.import_module("torch._inductor.compile_fx")

        def noting(side: str) -> Callable[..., Any]:
            def inner(graph: Any, example: Any, **options: Any) -> Any:
                found[side].append(sorted(options["static_input_idxs"]))
                return compile_fx.compile_fx_inner(graph, example, **options)

            return inner

        compilation = InductorCompilation(module, example)
        compilation._run(compilation._theirs, noting("sublet"), Lowering(), lazy=False, merges=False)
        with torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
            return compile_fx.compile_fx(module, example, inner_compile=noting("inductor"))

    x = torch.randn(2, 3, 12, 12) if make is convolutions else torch.randn(4, 32)
    torch.compile(make(), backend=backend)(x)
    assert found["sublet"] == found["inductor"]
    assert all(map(len, found["sublet"]))


def test_convolutions_take_the_peak_of_the_record_with_workspaces_and_without_saved_weights() -> None:
    """The bytes known to PyTorch's allocator, which oneDNN asks too, are within the record and the gradients."""
    module = nn.Sequential(
        nn.Conv2d(16, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, stride=2, padding=1),
    )  # fmt: skip
    x, call, gradients = torch.randn(2, 16, 12, 12), compiled(module), []

    def step() -> None:
        gradients[:] = torch.autograd.grad(call(x).square().mean(), list(module.parameters()))

    record = record_of(step)
    step()
    gradients.clear()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [each for each in profiler.profiler.kineto_results.events() if each.name() == "[memory]"]
    peak = max(accumulate(each.nbytes() for each in sorted(events, key=lambda each: each.start_ns())))
    results = sum(each.nbytes for each in gradients)
    assert record.peak_bytes is not None
    assert 0.8 * (record.peak_bytes + results) <= peak <= record.peak_bytes + results
    weights = sum(each.nbytes for each in module.parameters())
    assert record.saved_bytes < weights / 4


@pytest.mark.parametrize(
    ("make", "shape"),
    [(lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU()), (12, 8)), (lambda: nn.Conv2d(3, 4, 3), (4, 3, 9, 9))],
)
def test_changing_extents_have_no_known_peak(make: Callable[[], Any], shape: tuple[int, ...]) -> None:
    module, x = make(), torch.randn(shape)
    torch._dynamo.mark_dynamic(x, 0)
    call = compiled(module)
    record = record_of(lambda: call(x))
    assert record.peak_bytes is None
    assert "extents change from call to call" in str(record)
    before = len(sublet.torch.report())
    call(torch.randn(2 * shape[0], *shape[1:]))
    assert len(sublet.torch.report()) == before  # no extent was fixed
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"marked .* as dynamic but your code specialized it"):
        compiled(module, budget="1MiB")(x)


def test_a_budget_holds_for_each_shape() -> None:
    """PyTorch traces the second shape for all shapes. Sublet fixes the extents, and PyTorch traces each shape anew."""
    module, before = (
        nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU()),
        len(sublet.torch.report()),
    )
    call = compiled(module, budget="200KiB")
    for rows in (128, 96, 128, 64):
        x = torch.randn(rows, 64)
        found, wanted = (torch.autograd.grad(run(x).square().sum(), module[0].weight)[0] for run in (call, module))
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)
    peaks = [record.peak_bytes for record in sublet.torch.report()[before:]]
    assert len(peaks) == 3
    assert all(peak is not None and peak <= 200 << 10 for peak in peaks)


def test_an_error_of_sublet_leaves_the_graph_to_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise ZeroDivisionError("no such division")

    monkeypatch.setattr(inductor_kernels, "saved_positions", fail)
    module, x = nn.Sequential(nn.Linear(8, 16), nn.GELU()), torch.randn(12, 8)
    with pytest.warns(UserWarning, match="sublet leaves a graph to Inductor: .*no such division"):
        record = record_of(lambda: compiled(module)(x))
    assert "left to Inductor alone" in str(record)
    assert torch._inductor.config.custom_partitioner_fn is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernels": "triton"}, r"options=\{'kernels': 'triton'\}: there are 'sublet' and 'inductor'"),
        ({"kernels": "inductor", "samples": 2}, "Inductor's kernels take only 'budget' and 'losses'. Drop 'samples'"),
        ({"kernels": "inductor", "losses": 3}, "there are 'auto', 'rows', 'whole'"),
        ({"kernels": "sublet", "losses": 3}, "there are 'auto', 'rows', 'whole'"),
        ({"kernels": "inductor", "budget": 1.5}, "expected a number of bytes"),
    ],
)
def test_unknown_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        torch.compile(nn.Linear(2, 2), backend="sublet", options=options)(torch.ones(1, 2))


def test_live_bytes_of_a_step_are_added_up_over_both_passes() -> None:
    """Blocks 0 and 1 are arguments; 2 is saved, 3 is scratch, 4 the result of the caller. The backward pass frees 0."""
    forward = PassMemory([[2, 100], [3, 50], [4, 30], [3, 0]], {"x": 0, "w": 1}, [4, 2])
    backward = PassMemory([[2, 70], [0, 0], [3, 40], [3, 0]], {"a": 0, "tangent": 1}, [2])
    found = step_memory(forward, backward, {"a": 1}, 1)
    assert (found.peak, found.saved) == (150, 100)
    assert inductor_memory.memory_in_code(f"import torch\n{forward.comment}\n") == forward
    assert inductor_memory.memory_in_code("import torch\n") is None


@pytest.mark.parametrize("share", [None, 0.7])
def test_the_estimate_has_the_peak_of_the_compiled_call(share: float | None) -> None:
    """The module lies on `meta` for the estimate; with a memory, the budget is what is left of it."""
    on_meta, x = copy.deepcopy(linears()).to("meta"), torch.randn(128, 32)
    arguments = on_meta, lambda y: y.square().mean(), None, x.to("meta")
    found = sublet.torch.estimate(*arguments, kernels="inductor")
    assert found.sublet is not None
    need, options = found.sublet, {}
    outside = need.peak_bytes - need.arena_bytes
    if share is not None:
        options = {"budget": int(share * need.arena_bytes)}
        found = sublet.torch.estimate(*arguments, kernels="inductor", memory=outside + options["budget"])
        assert found.budgeted is not None
        assert found.fits
        assert "predicted" not in str(found)
        need = found.budgeted
    module = linears()
    call = torch.compile(
        lambda x: module(x).square().mean(), backend="sublet", options={"kernels": "inductor", **options}
    )
    assert record_of(lambda: call(x).backward()).peak_bytes == need.arena_bytes
    assert need.peak_bytes == outside + need.arena_bytes


def test_the_largest_batch_holds_for_the_kernels() -> None:
    on_meta, x = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).to("meta"), torch.empty(4, 32)
    arguments = on_meta, lambda y: y.square().mean(), None
    memory = 40_000
    found = sublet.torch.largest_batch(*arguments, x.to("meta"), memory=memory, kernels="inductor").sublet
    assert found
    needs = [
        sublet.torch.estimate(*arguments, torch.empty(count, 32, device="meta"), kernels="inductor").sublet
        for count in (found, found + 1)
    ]
    assert needs[0].peak_bytes <= memory < needs[1].peak_bytes


def test_an_estimate_of_unknown_kernels_is_refused() -> None:
    with pytest.raises(sublet.SubletError, match="there are 'sublet' and 'inductor'"):
        sublet.torch.estimate(linears(), None, None, torch.randn(4, 32), kernels="triton")


# Losses in groups of rows.

CLASSES = 512


class Words(nn.Module):
    """A vocabulary with a loss, written in several ways; the last layer has the weight of the embedding."""

    def __init__(self, way: str = "flatten", bias: bool = False) -> None:
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(CLASSES, 16), nn.Linear(16, 16)
        self.head, self.way = nn.Linear(16, CLASSES, bias=bias), way
        self.head.weight = self.embedding.weight

    def forward(self, words: Any, labels: Any) -> Any:
        logits = self.head(F.gelu(self.hidden(self.embedding(words))))
        match self.way:
            case "flatten":
                return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            case "shifted" | "sliced":
                logits = logits[..., :-1, :].contiguous() if self.way == "shifted" else logits[:, :-1].float()
                return F.cross_entropy(logits.reshape(-1, CLASSES), labels[:, 1:].reshape(-1), reduction="sum")
            case "ignored":
                return 3 * nn.CrossEntropyLoss(ignore_index=7)(logits.view(-1, CLASSES), labels.view(-1))
            case "smooth":
                return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
            case "read":
                return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) + logits.mean()
            case _:
                return F.cross_entropy(logits.transpose(1, 2), labels)


def words_and_labels() -> tuple[Any, Any]:
    words, labels = (torch.randint(0, CLASSES, (8, 16)) for _ in range(2))
    labels[:, ::3] = 7
    return words, labels


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_rows, "GROUP_BYTES", 1 << 16)


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize(
    ("way", "bias"), [("flatten", False), ("shifted", True), ("sliced", False), ("ignored", False)]
)
def test_losses_in_groups_of_rows_are_eagers(way: str, bias: bool, amp: bool) -> None:
    """Loss and gradients are at most twice as far from f64 as eager PyTorch's, and less memory is needed."""
    module, given = Words(way, bias), words_and_labels()
    exact = copy.deepcopy(module).double()

    def step(run: Any) -> list[Any]:
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            loss = run(*given)
        loss.backward()
        return [loss.detach(), *(each.grad.clone() for each in module.parameters())]

    found: list[list[Any]] = []
    record = record_of(lambda: found.append(step(compiled(module))))
    right = [(loss := exact(*given)).detach()]
    loss.backward()
    right += [each.grad for each in exact.parameters()]
    for mine, eager, true in zip(found[0], step(module), right, strict=True):
        mine_off, eager_off = (float((each.double() - true).norm()) for each in (mine, eager))
        assert mine_off <= 2 * eager_off + 1e-6 * float(true.norm())
    assert record.losses == 1
    assert record.peak_bytes is not None
    if not amp:
        assert record.peak_bytes < 0.75 * peak_by_inductor(module, *given, merges=False)


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("way", ["smooth", "read", "transposed"])
def test_other_losses_stay_whole(way: str) -> None:
    module, given = Words(way), words_and_labels()
    assert not record_of(lambda: compiled(module)(*given).backward()).losses


@pytest.mark.usefixtures("small_groups")
def test_a_loss_in_half_precision_stays_whole() -> None:
    """Eager PyTorch rounds the logarithms to bf16 there, and the groups would not."""
    module, given = Words().bfloat16(), words_and_labels()
    assert not record_of(lambda: compiled(module)(*given).backward()).losses


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_label_out_of_bounds_is_an_error(label: int) -> None:
    words, labels = words_and_labels()
    labels[3, 4] = label
    with pytest.raises(RuntimeError, match="a label is out of bounds"):
        compiled(Words())(words, labels)


def test_a_mean_over_no_label_is_no_number() -> None:
    x, weight, labels = torch.randn(4, 3), torch.randn(5, 3), torch.full((4,), -100)
    loss, by_x, by_weight, _ = loss_rows.loss_and_gradients(x, weight, None, labels, -100, True, 2)
    assert loss.isnan()
    assert not by_x.any()
    assert not by_weight.any()


def test_a_product_over_classes_in_bf16_is_summed_in_float32_on_a_gpu() -> None:
    """Otherwise cuBLAS may add the parts of a split sum in bf16."""
    with FakeTensorMode():
        gradient, weight = (torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in ((8, 40), (40, 4)))
        assert loss_rows._product_over_classes(gradient, weight).dtype is torch.float32


@pytest.mark.parametrize(
    ("device", "dtype", "losses", "merged"),
    [
        ("cpu", torch.bfloat16, "auto", 1),
        ("cuda", torch.float32, "auto", 1),
        ("cuda", torch.bfloat16, "auto", 0),
        ("cuda", torch.bfloat16, "rows", 1),
        ("cpu", torch.float32, "whole", 0),
    ],
)
def test_losses_of_bf16_stay_whole_on_a_gpu_by_default(device: str, dtype: Any, losses: str, merged: int) -> None:
    graph = torch.fx.Graph()
    x, weight, labels = (graph.placeholder(name) for name in ("x", "weight", "labels"))
    logits = graph.call_function(F.linear, (x, weight))
    loss = graph.call_function(F.cross_entropy, (logits, labels))
    graph.output(loss)
    rows, classes = 1 << 13, 1 << 14
    with FakeTensorMode():
        shapes = ((x, (rows, 8)), (weight, (classes, 8)), (logits, (rows, classes)))
        values = {node: torch.empty(shape, dtype=dtype, device=device) for node, shape in shapes}
        values[labels] = torch.zeros(rows, dtype=torch.int64, device=device)
        values[loss] = torch.empty((), device=device, requires_grad=True)
    for node, value in values.items():
        node.meta["example_value"] = value
    assert loss_rows.merge_losses(torch.fx.GraphModule({}, graph), losses) == merged
