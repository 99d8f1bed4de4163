"""Functional collectives in planned graphs, run in a process group of one; plans of the ranks of a larger one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sublet
from sublet.base.errors import ModelError, RunError
from tests.support.command_line import Cli

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from sublet.integrations.torch.compile.arena_pool import prepare_captured  # noqa: E402
from sublet.integrations.torch.compile.joint_graph import capture_program  # noqa: E402
from tests.integrations.torch import tensor_parallel  # noqa: E402
from tests.integrations.torch.judged import (  # noqa: E402
    EQUAL,
    judge,
)

C = torch.ops._c10d_functional


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


@pytest.fixture
def group() -> Iterator[str]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.group.WORLD.group_name
    torch.distributed.destroy_process_group()


COLLECTIVES = {
    "all_reduce": lambda x, g: C.all_reduce(x, "sum", g),
    "all_reduce of a view": lambda x, g: C.all_reduce(x.t(), "sum", g),
    "all_gather": lambda x, g: C.all_gather_into_tensor(x, 1, g),
    "all_gather of a view": lambda x, g: C.all_gather_into_tensor(x[:, 1:], 1, g),
    "reduce_scatter": lambda x, g: C.reduce_scatter_tensor(x, "sum", 1, g),
    "broadcast": lambda x, g: C.broadcast(x, 0, g),
    "all_to_all": lambda x, g: C.all_to_all_single(x, [4], [4], g),
    "coalesced": lambda x, g: C.all_gather_into_tensor_coalesced([x, x * 3], 1, g)[1],
}


def test_collectives_give_what_they_give_eagerly(group: str) -> None:
    """Other operators run between beginnings and waits."""

    def function(x: Any) -> Any:
        given = x * 2
        begun = {name: collective(given + i, group) for i, (name, collective) in enumerate(COLLECTIVES.items())}
        other = given.sin().sum() + x.cos().sum()
        return [C.wait_tensor(each) + other for each in begun.values()]

    assert judge(function, [torch.randn(4, 6)]).kind == EQUAL


def planned(function: Any) -> Any:
    traced = make_fx(function, tracing_mode="fake")(torch.randn(64, 64))
    _, ready = prepare_captured(capture_program(traced, None, (), {}))
    return sublet.plan_memory(ready.model)


def test_what_a_collective_reads_lives_until_somebody_waits_for_it(group: str) -> None:
    def function(x: Any) -> Any:
        given = x * 2
        begun = C.all_gather_into_tensor(given, 1, group)
        other = x.sin()
        return [C.wait_tensor(begun) + other]

    plan = planned(function)
    places = {place.value: place for place in plan.placements}
    waited = places["wait_tensor"]
    assert waited.how == "view", "the same bytes as what was begun"
    assert places["mul"].end >= waited.begin > places["sin"].begin
    apart = places["mul"].region, places["all_gather_into_tensor"].region, places["sin"].region
    assert len({region.offset for region in apart}) == 3


def test_a_sum_over_all_ranks_lies_where_its_terms_did(group: str) -> None:
    plan = planned(lambda x: [C.wait_tensor(C.all_reduce(x * 2, "sum", group)) * 3])
    places = {place.value: place for place in plan.placements}
    assert places["all_reduce"].how == "inplace"
    assert places["all_reduce"].region == places["mul"].region == places["wait_tensor"].region


def test_without_a_group_it_is_told(group: str) -> None:
    class Summed(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return C.wait_tensor(C.all_reduce(x, "sum", "nobody"))

    model = sublet.from_torch(Summed(), (torch.ones(3),))
    torch.distributed.destroy_process_group()
    try:
        with pytest.raises(RunError, match="all_reduce needs a process group"):
            sublet.compile(model)({model.inputs[0]: torch.ones(3)})
    finally:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)


SCRIPT = """
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def build(rank, world):
    mesh = torch.distributed.init_device_mesh("cpu", (world,))
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    parallel = parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return parallel, (torch.randn(32 * (1 + rank), 64),)

def broken(rank, world):
    raise KeyError(rank)

class Formula(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3.0)))) @ torch.ones(64, 2, device=x.device)

def formula(rank, world):
    return Formula().eval(), (torch.randn(256, 64),)
"""


def test_the_plans_of_all_ranks(tmp_path: Path, cli: Cli) -> None:
    """Two ranks, of which one has twice the rows."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    status, out, _ = cli("plan", f"{script}:build", "--ranks", 2, "--json", "--budget", "1K")
    assert status == 1
    told = json.loads(out)
    first, second = told["ranks"]
    assert first["weight_bytes"] == second["weight_bytes"] == 4 * (2 * 64 * 64 + 64 + 64)
    assert not first["not_planned"]
    assert 1.8 < second["arena_bytes"] / first["arena_bytes"] <= 2.1
    assert told["arena_bytes"] == second["arena_bytes"] == sum(second["graphs"])
    assert told["imbalance"] == second["arena_bytes"] / ((first["arena_bytes"] + second["arena_bytes"]) / 2) - 1
    assert "no --out, --html or --png" in cli("plan", f"{script}:build", "--ranks", 2, "--html", "x.html")[2]
    made: dict[str, Any] = {}
    exec(SCRIPT, made)
    in_less_order = json.loads(cli("plan", f"{script}:formula", "--ranks", 1, "--json")[1])["arena_bytes"]
    assert in_less_order == sublet.torch.rank_plans(made["formula"], 1).arena_bytes
    assert in_less_order < sublet.torch.rank_plans(made["formula"], 1, sublet.Options(alignment=64)).arena_bytes
    for name, words in (("broken", "rank 0 of 2 cannot be traced on meta: KeyError"), ("nobody", "has no function")):
        status, _, err = cli("plan", f"{script}:{name}", "--ranks", 2)
        assert (status, words in err) == (2, True), err


def test_bad_ranks_are_told(group: str) -> None:
    with pytest.raises(RunError, match="a process group is there already"):
        sublet.torch.rank_plans(lambda rank, world: (None, ()), 2)
    with pytest.raises(ModelError, match="at least one rank"):
        sublet.torch.rank_plans(lambda rank, world: (None, ()), 0)


def test_two_tensor_parallel_ranks_train_as_one_process(tmp_path: Path) -> None:
    """This process is the first."""
    meeting, before = str(tmp_path / "meeting"), len(sublet.torch.report())
    command = [sys.executable, "-m", "tests.integrations.torch.tensor_parallel", meeting]
    torch._dynamo.reset()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as second:
        try:
            first = tensor_parallel.trained(0, meeting)
            out, _ = second.communicate(timeout=60)
        finally:
            second.kill()
    planned = sublet.torch.report()[before:]
    assert [each.reason for each in planned] == [""]
    module = tensor_parallel.network()
    right = tensor_parallel.losses(module, module.parameters())
    assert first == json.loads(out.splitlines()[-1]) == pytest.approx(right, rel=1e-9)
