"""Tests of the gradient of an embedding tied to another layer: the rows are added to the gradient of the layer."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import sublet  # noqa: E402
from sublet.integrations.torch.compile.arena_pool import ArenaPool  # noqa: E402
from sublet.integrations.torch.compile.compile_report import report  # noqa: E402
from sublet.integrations.torch.compile.joint_graph import capture_program  # noqa: E402
from sublet.integrations.torch.dialect import EMBEDDING_SUM  # noqa: E402
from tests.integrations.torch.cases import weights_after_steps  # noqa: E402
from tests.integrations.torch.judged import run_poisoned  # noqa: E402

A, F = torch.ops.aten, torch.nn.functional


INDICES = {
    "repeated": torch.randint(7, (4, 9)),
    "all rows": torch.arange(50).repeat(3),
    "expanded": torch.arange(6).expand(5, 6),
    "one": torch.tensor([3]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("padding", [-1, 3])
@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("first", [True, False])
def test_sums_have_pytorchs_bits(name: str, padding: int, first: bool, dtype: torch.dtype) -> None:
    """In a poisoned arena, over the other gradient and beside it."""
    indices = INDICES[name]

    def gradient(table: torch.Tensor, dy: torch.Tensor) -> list[torch.Tensor]:
        base, rows = table * 2, A.embedding_dense_backward(dy, indices, 50, padding, False)
        whole = A.add(base, rows) if first else A.add(rows, base)
        return [whole + 1, *([] if first else [base + 1])]

    inputs = torch.randn(50, 8).to(dtype), torch.randn(*indices.shape, 8).to(dtype)
    expected = gradient(*inputs)
    pool = ArenaPool(capture_program(make_fx(gradient)(*inputs), None, (), {}), inputs, sublet.Options())
    assert EMBEDDING_SUM in [node.op for node in pool.plan.nodes]
    assert all(torch.equal(*pair) for pair in zip(run_poisoned(pool, inputs), expected, strict=True))


OTHERS = {
    "read twice": lambda base, rows: [A.add(base, rows), rows * 2],
    "scaled": lambda base, rows: [A.add(base, rows, alpha=2)],
    "broadcast": lambda base, rows: [A.add(base[:1], rows)],
    "another type": lambda base, rows: [A.add(base.double(), rows)],
    "itself": lambda base, rows: [A.add(rows, rows)],
    "a product": lambda base, rows: [A.mul(base, rows)],
    "a number": lambda base, rows: [A.add(rows, 1.0)],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_readers_have_the_whole_gradient(name: str) -> None:
    indices = torch.randint(50, (4, 9))

    def gradient(table: torch.Tensor, dy: torch.Tensor) -> list[torch.Tensor]:
        return OTHERS[name](table * 2, A.embedding_dense_backward(dy, indices, 50, -1, False))

    inputs = torch.randn(50, 8), torch.randn(4, 9, 8)
    pool = ArenaPool(capture_program(make_fx(gradient)(*inputs), None, (), {}), inputs, sublet.Options())
    assert EMBEDDING_SUM not in [node.op for node in pool.plan.nodes]
    for found, each in zip(run_poisoned(pool, inputs), gradient(*inputs), strict=True):
        assert torch.allclose(found, each, atol=1e-6)


class TiedModel(torch.nn.Module):
    """An encoder, a decoder and a last layer with one table of 4,000 rows, as in T5."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(4000, 64, padding_idx=0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(2))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        encoded = torch.tanh(self.layers[0](self.table(first))).mean(1, keepdim=True)
        return F.linear(torch.tanh(self.layers[1](self.table(second) + encoded)), self.table.weight)


def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels)


@pytest.mark.parametrize("whole_step", [False, True])
def test_a_tied_model_trains_without_the_gradient_of_an_embedding(whole_step: bool) -> None:
    torch._dynamo.reset()
    given = torch.randint(4000, (2, 16)), torch.randint(4000, (2, 16))
    labels, trained, before = torch.randint(4000, (32,)), [], len(report())
    for planned in (False, True):
        torch.manual_seed(0)
        module = TiedModel()
        run = torch.compile(module, backend="sublet") if planned and not whole_step else module
        run = None if planned and whole_step else run
        trained.append(weights_after_steps(module, loss, given, labels, run=run))
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(*trained, strict=True))
    table = module.table.weight.nbytes
    if not whole_step:
        (record,) = report()[before:]
        assert record.plan.arena_bytes < 2 * table  # the logits' gradient and one gradient of the table


class TiedModules(torch.nn.Module):
    """An encoder, a decoder and a last layer of their own, with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = torch.nn.Embedding(4000, 64), torch.nn.Embedding(4000, 64)
        self.last = torch.nn.Linear(64, 4000, bias=False)
        self.encoder.weight = self.decoder.weight = self.last.weight

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.decoder(second) + self.encoder(first).mean(1, keepdim=True)))


def test_gradients_of_one_weight_with_several_names_are_added_as_autograd_adds() -> None:
    given, labels = (torch.randint(4000, (2, 16)), torch.randint(4000, (2, 16))), torch.randint(4000, (32,))
    torch.manual_seed(0)
    module, eager = TiedModules(), TiedModules()
    eager.load_state_dict(module.state_dict())
    step = sublet.torch.train_step(module, loss, torch.optim.SGD(module.parameters(), 0.1))
    optimizer = torch.optim.SGD(eager.parameters(), 0.1)
    for _ in range(2):
        step(given, labels)
        optimizer.zero_grad()
        loss(eager(*given), labels).backward()
        optimizer.step()
    assert torch.allclose(module.last.weight, eager.last.weight, atol=1e-6)
    assert step.plan is not None
    assert [node.op for node in step.plan.nodes].count(EMBEDDING_SUM) == 2
    assert step.plan.arena_bytes < 2 * module.last.weight.nbytes  # the logits' gradient and one gradient of the weight
