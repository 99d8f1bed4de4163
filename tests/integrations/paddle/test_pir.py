"""Programs in PIR: read, planned, and refused where they make no sense."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from sublet.api.model_files import read_model
from sublet.base.errors import ModelError, SubletError
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.paddle.convert.pir import model_from_block
from sublet.integrations.paddle.format.pir import decode_pir
from sublet.ir.graph import CaseOf, While
from sublet.planning.pipeline import plan_memory
from tests.integrations.paddle.given import BESIDE

NAME = "pir_loop_and_branch.json"
TEXT = (BESIDE / NAME).read_text(encoding="utf-8")
DAMAGED = 400


def test_a_program_with_a_loop_and_a_branch_is_planned() -> None:
    """Extents that the program leaves open follow from those of its input."""
    model = read_model(BESIDE / NAME, {"x.0": 2})
    (loop,) = (node for node in model.graph.nodes if isinstance(node, While))
    (case,) = (node for node in model.graph.nodes if isinstance(node, CaseOf))
    assert loop.carried == 3
    assert len(case.arms) == 2
    assert model.graph.unplannable_values == ()
    assert model.graph.outputs[0].spec == TensorSpec(DType.F32, (2, 8))
    assert {weight.name for weight in model.graph.weights} >= {"conv2d_0.w_0", "linear_1.b_0"}
    plan = plan_memory(model)
    assert plan.arena_bytes == plan.lower_bound_bytes <= 16464


def test_the_arm_that_runs_when_the_condition_holds_is_the_second() -> None:
    """Paddle writes it first; the program doubles then, and takes one off else."""
    (case,) = (node for node in read_model(BESIDE / NAME, {"x.0": 2}).graph.nodes if isinstance(node, CaseOf))
    content = json.loads(TEXT)
    (branch,) = (op for op in content["program"]["regions"][0]["blocks"][0]["ops"] if op["#"] == "1.if")
    counts = [len(region["blocks"][0]["ops"]) for region in branch["regions"]]
    branch["regions"][0]["blocks"][0]["ops"].insert(0, branch["regions"][0]["blocks"][0]["ops"][0])
    again = model_from_block(decode_pir(json.dumps(content), NAME), {"x.0": 2}, NAME)
    (other,) = (node for node in again.graph.nodes if isinstance(node, CaseOf))
    assert [len(arm.nodes) for arm in case.arms] == [count - 1 for count in reversed(counts)]
    assert [len(arm.nodes) for arm in other.arms] == [counts[1] - 1, counts[0]]


def test_what_is_open_is_told() -> None:
    with pytest.raises(ModelError, match=r"input 'x' is f32\[\?,3,16,16\].*--shape x=1,3,16,16"):
        read_model(BESIDE / NAME)
    with pytest.raises(ModelError, match="names no extent"):
        read_model(BESIDE / NAME, {"x.0": 1, "y.0": 1})
    with pytest.raises(ModelError, match="declared as"):
        read_model(BESIDE / NAME, {"x.0": 1, "x.1": 4})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("{}", "base_code"),
        (json.dumps({"base_code": {"magic": "other"}}), "magic"),
        (json.dumps({"base_code": {"magic": "pir"}, "program": {"regions": []}}), "one outermost block, not 0"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=message):
        read_model(path)


def damaged(content: Any, rng: random.Random) -> None:
    """Changes, drops or doubles one entry somewhere."""
    while True:
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(content[key], dict | list) and rng.random() < 0.85:
            content = content[key]
            continue
        kind = rng.choice(["drop", "other", "other", "double"])
        if kind == "drop":
            del content[key]
        elif kind == "other":
            content[key] = rng.choice([None, -1, 0, 7, 1 << 70, "text", [], {}, [[]], True, 2.5, content[key]])
        elif isinstance(content, list):
            content.insert(key, content[key])
        return


def test_damaged_programs_are_refused_in_words() -> None:
    """Whatever entry is wrong: an error of ours, or a model that can be planned."""
    refused = 0
    for seed in range(DAMAGED):
        content, rng = json.loads(TEXT), random.Random(seed)
        for _ in range(rng.choice([1, 1, 3])):
            damaged(content, rng)
        try:
            model = model_from_block(decode_pir(json.dumps(content), "damaged"), {"x.0": 2}, "damaged")
            if seed % 20 == 0:
                plan_memory(model)
        except SubletError as error:
            refused += bool(str(error))
    assert refused > DAMAGED / 10


TENSOR = {"#": "0.t_dtensor", "D": [{"#": "0.t_f32"}, [-1], "NCHW", [], 0]}
FLAG = {"#": "0.t_dtensor", "D": [{"#": "0.t_bool"}, [], "NCHW", [], 0]}
COUNTS = {"#": "0.t_dtensor", "D": [{"#": "0.t_i64"}, [1], "NCHW", [], 0]}
PAIR = {"#": "0.t_vec", "D": [TENSOR, TENSOR]}


def op(kind: str, inputs: list[int], outputs: list[int], type_: Any = TENSOR, **more: Any) -> dict[str, Any]:
    attrs = [{"N": name, "AT": {"#": "", "D": value}} for name, value in more.pop("attrs", {}).items()]
    written = [{"%": number, "TT": type_} for number in outputs]
    return {"#": kind, "A": attrs, "I": [{"%": number} for number in inputs], "O": written, **more}


def doubled(value: int, into: int) -> list[dict[str, Any]]:
    """Operators that join a value with itself."""
    axis = op("1.full_int_array", [], [98], COUNTS, attrs={"value": [0]})
    return [axis, op("0.combine", [value, value], [99], PAIR), op("1.concat", [99, 98], [into])]


def test_loops_in_loops_take_bounded_time() -> None:
    """Each of many nested loops begins anew, and changes what it carries."""
    inner = [*doubled(-1, 97), op("2.yield", [1, 97], [])]
    for _ in range(40):
        body = {"args": [{"#": -1, "TT": TENSOR}], "ops": inner}
        inner = [
            op("1.while", [1, 2], [96], regions=[{"blocks": [body]}]),
            *doubled(-1, 97),
            op("2.yield", [1, 97], []),
        ]
    go, x = (
        op("1.data", [], [at], kind, attrs={"name": name}) for at, kind, name in ((1, FLAG, "go"), (2, TENSOR, "x"))
    )
    ops = [go, x, inner[0], op("1.fetch", [96], [94])]
    content = {"base_code": {"magic": "pir"}, "program": {"regions": [{"blocks": [{"args": [], "ops": ops}]}]}}
    with pytest.raises(ModelError, match="too many passes"):
        model_from_block(decode_pir(json.dumps(content), "deep"), {"x.0": 2}, "deep")
