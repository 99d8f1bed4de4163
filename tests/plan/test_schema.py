"""The published JSON Schema of plan files accepts exactly the plans that Sublet reads, and tells every field.

python -m tests.plan.test_schema    # write src/sublet/plan/plan.schema.json from the records, after a change of them
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import resources
from inspect import getdoc
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import jsonschema
import onnx
import pytest

import sublet
from benchmarks.models.recurrent import lstm_loop
from sublet import nn
from sublet.base.errors import PlanError
from sublet.ir.text import parse
from sublet.packing import MemoryRegion
from sublet.plan import FORMAT_VERSION, MemoryPlan
from sublet.plan.file import LARGEST, from_json, to_json
from sublet.planning.pipeline import plan_memory
from tests.plan.test_file import TEXT
from tests.support.plan_file_mutants import JUMPING, changed_files
from tests.support.programs import program
from tests.support.schedules import random_schedule
from tests.support.update_programs import exchanging
from tests.walk import CELL, VAD

SCHEMA = resources.files("sublet.plan") / "plan.schema.json"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
COLUMN = re.compile(r"^([a-z_]+(?:, [a-z_]+)*) {2,}(\S.*(?:\n +\S.*)*)$", re.MULTILINE)
"""Names of fields, and their meaning, in aligned columns of a docstring."""

SCAN = """<ir_version: 9, opset_import: ["" : 17]>
scan (float[16] a0, float[9,16] xs) => (float[16] af, float[9,16] ys)
{
  af, ys = Scan <num_scan_inputs = 1, body = step (float[16] a, float[16] x) => (float[16] an, float[16] y) {
    y = Mul (x, a)
    an = Add (a, x)
  }> (a0, xs)
}"""


OPEN = """<ir_version: 8, opset_import: ["" : 17]>
open (float[a, b] x, float[c, b] y) => (z) { z = Concat<axis = 0>(x, y) }"""
OPEN_DIMS = {"a": (1, 4), "b": (1, 4), "c": "a"}


def schema_of_plans() -> dict[str, Any]:
    """Return the schema, made from the annotations and docstrings of the records."""
    definitions: dict[str, Any] = {}
    schema_of(MemoryPlan, definitions)
    plan = definitions.pop("MemoryPlan")
    plan["properties"]["version"] = {"const": FORMAT_VERSION, "description": "the version of the format"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:sublet:plan-file:{FORMAT_VERSION}",
        "title": "MemoryPlan",
        **plan,
        "$defs": definitions,
    }


def schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an annotation; records are added to the definitions."""
    origin, items = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}
            definitions[kind.__name__] = schema_of_record(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if origin is tuple and items[-1] is Ellipsis:
        return {"type": "array", "items": schema_of(items[0], definitions)}
    if origin is tuple:
        inner = [schema_of(item, definitions) for item in items]
        return {"type": "array", "prefixItems": inner, "items": False, "minItems": len(inner)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": schema_of(items[1], definitions)}
    if kind is int:
        return {"type": "integer", "minimum": -1, "maximum": LARGEST}
    return {"type": {str: "string", bool: "boolean"}[kind]}


def schema_of_record(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a record: all fields required, no other allowed."""
    text = getdoc(kind) or ""
    meanings = {
        name: " ".join(meaning.split()) for names, meaning in COLUMN.findall(text) for name in names.split(", ")
    }
    hints = get_type_hints(kind)
    properties = {field.name: schema_of(hints[field.name], definitions) for field in fields(kind)}
    for name, meaning in meanings.items():
        if name in properties:
            properties[name]["description"] = meaning
    return {
        "description": " ".join(COLUMN.sub("", text).split()),
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@cache
def validator() -> Any:
    return jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def plans() -> Iterator[tuple[str, MemoryPlan]]:
    """Yield plans of all kinds, which together fill every list of a plan file."""
    yield "loop, branch, unplanned value", plan_memory(parse(TEXT), dims={"batch": 2})
    yield "resnet50", sublet.compile(LIGHT / "light_resnet50.onnx", optimize="none").plan
    yield (
        "LSTM's loop",
        sublet.compile(
            lstm_loop(8, 1, 16, 16), max_trips=8, optimize="none", options=sublet.Options(in_place_from=0)
        ).plan,
    )
    cell = onnx.parser.parse_model(CELL)
    yield "states", sublet.compile(cell, state={"h": "hn", "c": "cn"}, optimize="none").plan
    vad = onnx.parser.parse_model(VAD)
    yield "constant", sublet.compile(vad, const={"sr": 16000}, optimize="none").plan
    yield "ranges", sublet.compile_ranges(onnx.parser.parse_model(OPEN), OPEN_DIMS, optimize="none").plan
    scan = onnx.parser.parse_model(SCAN)
    yield "slices in place", sublet.compile(scan, optimize="none", options=sublet.Options(in_place_from=0)).plan
    yield "budget", training_step_in_a_budget()
    yield "jumps of versions", plan_memory(parse(JUMPING))
    for seed in range(6):
        rng = random.Random(seed)
        graph = program(rng, 12, recurrent=seed % 3 == 2)
        regions = (MemoryRegion("fast", 256, 1), MemoryRegion("slow", 1 << 20, 10)) if seed % 5 == 0 else ()
        options = sublet.Options(in_place_from=seed % 2, io="bound" if seed % 4 == 0 else "arena", regions=regions)
        yield f"program {seed}", plan_memory(graph, options)
        yield f"streams {seed}", plan_memory(graph, schedule=random_schedule(rng, graph, 3))
        yield f"exchanged weights {seed}", plan_memory(exchanging(rng, 6))


def training_step_in_a_budget() -> MemoryPlan:
    g = sublet.Graph("step")
    h = g.input("x", (64, 32))
    for i in range(8):
        h = nn.gelu(h @ g.parameter(f"w{i}", (32, 32), initial=0.01))
    step = sublet.train_step(h.mean(), g.parameters, sublet.SGD(0.1))
    return sublet.compile(step, budget=int(sublet.compile(step).plan.arena_bytes * 0.7)).plan


@pytest.fixture(scope="module")
def files() -> dict[str, Any]:
    return {name: json.loads(to_json(plan)) for name, plan in plans()}


def test_the_published_schema_is_that_of_the_records() -> None:
    published = SCHEMA.read_text(encoding="utf-8")
    assert json.loads(published) == schema_of_plans(), "a record changed: python -m tests.plan.test_schema"


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema_of_plans())


def test_every_field_of_a_plan_has_a_meaning() -> None:
    assert not [name for name, each in schema_of_plans()["properties"].items() if "description" not in each]


def test_the_schema_accepts_plans_of_all_kinds(files: dict[str, Any]) -> None:
    for name, file in files.items():
        assert not [error.message for error in validator().iter_errors(file)], name


def test_the_plans_fill_every_list_of_the_schema(files: dict[str, Any]) -> None:
    schema = schema_of_plans()
    lists = {(record, name) for record, name, each in properties(schema) if each["type"] in ("array", "object")}
    for file in files.values():
        lists -= set(filled(file, schema, "MemoryPlan", schema))
    # What only options of callers, kernels, states over ranges and tight budgets add to a recipe.
    assert lists <= {("Recipe", name) for name in ("assumed", "carried", "declared", "scratch", "split")}, lists


def properties(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield record, name and schema of every field that is no record itself."""
    for record, definition in {"MemoryPlan": schema, **schema["$defs"]}.items():
        for name, each in definition["properties"].items():
            if "type" in each:
                yield record, name, each


def filled(value: Any, of: dict[str, Any], record: str, schema: dict[str, Any], name: str = "") -> Iterator[Any]:
    """Yield record and name of every list and mapping of a value with an entry."""
    if "$ref" in of:
        record, name = of["$ref"].rpartition("/")[2], ""
        of = schema["$defs"][record]
    if isinstance(value, list | dict) and value and name:
        yield record, name
    if isinstance(value, list):
        for i, item in enumerate(value):
            kind = of["prefixItems"][i] if "prefixItems" in of else of["items"]
            yield from filled(item, kind, record, schema)
    elif isinstance(value, dict):
        for key, item in value.items():
            if "properties" in of:
                yield from filled(item, of["properties"][key], record, schema, key)
            else:
                yield from filled(item, of["additionalProperties"], record, schema)


def test_schema_and_reader_agree_on_changed_files(files: dict[str, Any]) -> None:
    verdicts = set()
    for i, file in enumerate(files.values()):
        rng = random.Random(i)
        if len(json.dumps(file)) > 40_000:
            continue
        for name, text in (*changed_files(rng, json.dumps(file), 10), *broken_files(rng, file, 10)):
            version = json.loads(text).get("version")
            if isinstance(version, int) and version < FORMAT_VERSION:
                continue  # may be read too, and is written as the new version
            verdict = read(text)
            assert validator().is_valid(json.loads(text)) is verdict, (name, text)
            verdicts.add(verdict)
    assert verdicts == {True, False}


def read(text: str) -> bool:
    """True if Sublet reads the plan file; entries given twice are no matter of a schema."""
    try:
        from_json(text)
    except PlanError as error:
        return " again, as " in str(error)
    return True


def broken_files(rng: random.Random, file: Any, count: int) -> Iterator[tuple[str, str]]:
    """Yield plan files with a wrong type, a wrong number, a missing field or an unknown field."""
    for _ in range(count):
        mutant = json.loads(json.dumps(file))
        places = [mutant]
        for place in places:
            places += [
                each for each in (place.values() if isinstance(place, dict) else place) if type(each) in (dict, list)
            ]
        place = rng.choice([each for each in places if each])
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if isinstance(place, dict) and rng.random() < 0.3:
            place[rng.choice(["more", key + "s"])] = place[key]
        elif rng.random() < 0.2:
            del place[key]
        else:
            place[key] = rng.choice([-2, 1 << 63, 0.5, None, True, "text", [], {}, [[]]])
        yield "broken", json.dumps(mutant)


def main() -> None:
    Path(str(SCHEMA)).write_text(json.dumps(schema_of_plans(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
