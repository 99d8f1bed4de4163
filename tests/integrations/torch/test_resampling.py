"""Tests of resampling: each network traced for planning runs the resampling operators of eager PyTorch."""

from __future__ import annotations

import threading
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch._dispatch.python import enable_python_dispatcher  # noqa: E402

import sublet  # noqa: E402
from sublet.integrations.torch.compile.compile_report import report  # noqa: E402
from sublet.integrations.torch.reader.tracing_rules import keep_operators  # noqa: E402

F = torch.nn.functional
CASES = {
    "nearest 1d": (1, {"mode": "nearest", "scale_factor": 2.0}),
    "nearest 2d": (2, {"mode": "nearest", "scale_factor": 2.0}),
    "nearest 2d to a size": (2, {"mode": "nearest", "size": (7, 9)}),
    "nearest 2d by an uneven scale": (2, {"mode": "nearest", "scale_factor": 1.7}),
    "nearest 3d": (3, {"mode": "nearest", "scale_factor": 2.0}),
    "nearest-exact 1d": (1, {"mode": "nearest-exact", "scale_factor": 2.0}),
    "nearest-exact 2d": (2, {"mode": "nearest-exact", "size": (5, 9)}),
    "nearest-exact 3d": (3, {"mode": "nearest-exact", "scale_factor": 2.0}),
    "linear": (1, {"mode": "linear", "scale_factor": 2.0}),
    "bilinear": (2, {"mode": "bilinear", "scale_factor": 2.0}),
    "bilinear by corners": (2, {"mode": "bilinear", "size": (7, 9), "align_corners": True}),
    "trilinear": (3, {"mode": "trilinear", "size": (5, 6, 7)}),
    "bicubic": (2, {"mode": "bicubic", "scale_factor": 2.0}),
}


class Resampled(torch.nn.Module):
    """A convolution between two resamplings."""

    def __init__(self, axes: int, how: dict[str, object]) -> None:
        super().__init__()
        self.how = how
        self.inner = getattr(torch.nn, f"Conv{axes}d")(3, 3, 3, padding=1)

    def forward(self, x):
        return F.interpolate(self.inner(F.interpolate(x, **self.how)), **self.how)


def network_of(case: str) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    axes, how = CASES[case]
    return Resampled(axes, how), torch.randn(4, 3, *(4,) * axes)


def operators_of(graph) -> set[str]:
    return {node.op for node in graph.walk()}


def gradients_of(run, module, x):
    module.zero_grad()
    given = x.clone().requires_grad_()
    result = run(given)
    result.square().sum().backward()
    return [result.detach(), given.grad, *(each.grad.clone() for each in module.parameters())]


@pytest.mark.parametrize("case", CASES)
def test_compiled_training_runs_the_operators_of_eager_pytorch(case):
    module, x = network_of(case)
    expected = gradients_of(module, module, x)
    torch._dynamo.reset()
    results = gradients_of(torch.compile(module, backend="sublet"), module, x)
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)
    operators = {node.op for node in report()[-1].plan.nodes}
    assert any("upsample" in op and "backward" not in op for op in operators)
    assert any("upsample" in op and "backward" in op for op in operators)
    assert not any("index" in op for op in operators)


@pytest.mark.parametrize("case", ["nearest 2d", "bilinear", "trilinear"])
def test_changing_extents_keep_the_results(case):
    module, x = network_of(case)
    torch._dynamo.reset()
    run = torch.compile(module, backend="sublet", dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for extent in (4, 5):
            given = torch.randn(2, 3, *(extent,) * (x.dim() - 2))
            for result, wanted in zip(
                gradients_of(run, module, given), gradients_of(module, module, given), strict=True
            ):
                torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_models_of_modules_run_the_operators_of_eager_pytorch(case):
    module, x = network_of(case)
    model = sublet.from_torch(module, (x,))
    operators = operators_of(model.graph)
    assert any("upsample" in op for op in operators)
    assert not any("index" in op for op in operators)
    with torch.no_grad():
        expected = module(x)
    (result,) = sublet.compile(model)({model.inputs[0]: x.numpy()}).values()
    torch.testing.assert_close(torch.from_numpy(result), expected)


@pytest.mark.parametrize("case", ["nearest 2d", "bilinear by corners", "bicubic"])
def test_a_training_step_updates_as_the_eager_loop(case):
    module, x = network_of(case)
    twin, _ = network_of(case)
    optimizer, own = (torch.optim.SGD(each.parameters(), 0.1) for each in (module, twin))
    step = sublet.torch.train_step(module, lambda y: y.square().mean(), optimizer)
    for _ in range(2):
        step(x)
        own.zero_grad()
        twin(x).square().mean().backward()
        own.step()
    for one, other in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    operators = {node.op for node in step.plan.nodes}
    assert any("upsample" in op and "backward" in op for op in operators)
    assert not any("index" in op for op in operators)


def test_inference_is_split_into_micro_batches():
    torch._dynamo.reset()
    module, x = network_of("bilinear")
    run = torch.compile(module.eval(), backend="sublet", options={"samples": 2})
    with torch.no_grad():
        torch.testing.assert_close(run(x), module(x))
    assert report()[-1].parts == 2


def functions_of_pytorch():
    aten = torch.ops.aten
    operators = [aten.upsample_nearest2d.vec, aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default]
    return [dict(each.py_kernels) for each in operators]


def test_the_functions_of_pytorch_are_restored():
    before = functions_of_pytorch()
    with keep_operators():
        with keep_operators():
            pass
        assert functions_of_pytorch() != before
    assert functions_of_pytorch() == before
    with pytest.raises(KeyError), keep_operators():
        raise KeyError
    assert functions_of_pytorch() == before


def traced_operators(x):
    with enable_python_dispatcher():  # as AOTAutograd does
        graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: F.interpolate(x, scale_factor=2.0))(x).graph
    return {str(node.target) for node in graph.nodes if node.op == "call_function"}


def test_other_threads_trace_as_pytorch_does():
    x, traced = torch.randn(1, 3, 4, 4), []
    plain = traced_operators(x)
    with keep_operators():
        other = threading.Thread(target=lambda: traced.append(traced_operators(x)))
        other.start()
        other.join()
        kept = traced_operators(x)
    assert traced == [plain]
    assert kept == {"aten.upsample_nearest2d.default"}
    assert traced_operators(x) == plain != kept
