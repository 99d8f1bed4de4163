"""The planner and the checker of docs/explanation/a_planner_in_100_lines.md run, agree, and refuse wrong plans."""

from __future__ import annotations

import ast
import builtins
import random
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.prose import ROOT

PAGE = ROOT / "docs" / "explanation" / "a_planner_in_100_lines.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
GRAPHS = 200


def blocks() -> list[tuple[str, str]]:
    """Return the code blocks of the page, each with the text that the page shows below the block."""
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def code_of(part: str) -> str:
    """Return the code of the planner, the checker or the examples."""
    return "".join(code for code, _ in blocks() if code.startswith(f"# {part}"))


def namespace_of(*parts: str) -> dict[str, Any]:
    """Return the names that the blocks of some parts define."""
    names: dict[str, Any] = {"__name__": "page"}
    for part in parts:
        exec(compile(code_of(part), str(PAGE), "exec"), names)
    return names


@pytest.fixture
def page() -> dict[str, Any]:
    return namespace_of("planner", "checker")


def random_graph(page: dict[str, Any], rng: random.Random) -> Any:
    """Return a graph of new, in-place and view nodes; operands are recent values or any earlier values."""
    nbytes = {f"x{i}": rng.randint(1, 12) for i in range(rng.randint(1, 3))}
    inputs, nodes = tuple(nbytes), []
    for i in range(rng.randint(1, 12)):
        output, kind = f"v{i}", rng.choice(("new", "new", "inplace", "inplace", "view"))
        source = rng.choice(list(nbytes)[-2:] if rng.random() < 0.7 else list(nbytes))
        if kind == "view":
            start = rng.randrange(nbytes[source])
            nbytes[output] = rng.randint(1, nbytes[source] - start)
            nodes.append(page["Node"](output, (source,), kind, start))
            continue
        operands = [source, *rng.choices(list(nbytes), k=rng.randint(0, 2))]
        rng.shuffle(operands)
        nbytes[output] = nbytes[source] if kind == "inplace" else rng.randint(1, 12)
        nodes.append(page["Node"](output, tuple(operands), kind))
    outputs = {rng.choice(list(nbytes)) for _ in range(rng.randint(0, 2))} | {nodes[-1].output}
    return page["Graph"](nbytes, inputs, tuple(nodes), tuple(sorted(outputs)))


def random_graphs(page: dict[str, Any]) -> Iterator[tuple[random.Random, Any]]:
    for seed in range(GRAPHS):
        rng = random.Random(seed)
        yield rng, random_graph(page, rng)


def byte_of(node: Any, i: int, operands: list[bytes]) -> int:
    """Return byte `i` of the output of a node; an in-place node reads only byte `i` of operands of its own size."""
    elementwise = node.kind == "inplace"
    read = [data[i : i + 1] if elementwise and i < len(data) else data for data in operands]
    return zlib.crc32(repr((node.output, i, read)).encode()) & 0xFF


def input_bytes(graph: Any, value: str) -> bytes:
    return bytes(zlib.crc32(f"{value}{i}".encode()) & 0xFF for i in range(graph.nbytes[value]))


def run_apart(graph: Any) -> dict[str, bytes]:
    """Return the outputs of a run in which no bytes are shared."""
    values = {value: input_bytes(graph, value) for value in graph.inputs}
    for node in graph.nodes:
        operands = [values[value] for value in node.inputs]
        nbytes = graph.nbytes[node.output]
        if node.kind == "view":
            values[node.output] = operands[0][node.start : node.start + nbytes]
        else:
            values[node.output] = bytes(byte_of(node, i, operands) for i in range(nbytes))
    return {value: values[value] for value in graph.outputs}


def run_in_arena(graph: Any, plan: Any) -> dict[str, bytes]:
    """Return the outputs of a run in the arena of a plan; a node reads all operands again for each byte."""
    arena = bytearray(plan.arena)

    def region(value: str) -> slice:
        return slice(plan.offsets[value], plan.offsets[value] + graph.nbytes[value])

    for value in graph.inputs:
        arena[region(value)] = input_bytes(graph, value)
    for node in graph.nodes:
        for i in range(graph.nbytes[node.output] if node.kind != "view" else 0):
            arena[plan.offsets[node.output] + i] = byte_of(node, i, [bytes(arena[region(v)]) for v in node.inputs])
    return {value: bytes(arena[region(value)]) for value in graph.outputs}


def test_the_page_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for code, shown in blocks():
        exec(compile(code, str(PAGE), "exec"), names)
        assert capsys.readouterr().out == shown, code
    assert names["plan"].arena == names["plan"].bound == 5120
    assert names["check"](names["network"], names["plan"]) == []
    assert "relu" in names["check"](names["network"], names["wrong"])[0]
    assert "image" in names["check"](names["network"], names["overlapping"])[0]


def test_every_block_belongs_to_a_part() -> None:
    assert {re.match(r"# (\w+)", code)[1] for code, _ in blocks()} == {"planner", "checker", "example"}  # type: ignore[index]


def test_planner_and_checker_are_short() -> None:
    assert len(code_of("planner").splitlines()) <= 100
    assert len(code_of("checker").splitlines()) <= 60


def test_the_checker_stands_alone() -> None:
    tree = ast.parse(code_of("checker"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.arg | ast.FunctionDef)]
    own = {node.arg for node in names if isinstance(node, ast.arg)}
    own |= {node.name for node in names if isinstance(node, ast.FunctionDef)}
    own |= {node.id for node in names if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    read = {node.id for node in names if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert not read - own - set(dir(builtins))
    assert not re.search(r"\bsublet\b", code_of("planner") + code_of("checker"))


def test_the_page_names_files_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    files = [ROOT / name for name in re.findall(r"`(src/sublet/[\w/]+\.py)`", text)]
    links = [PAGE.parent / link for link in re.findall(r"\]\(([^)#:]+)", text)]
    assert len(files) >= 20
    assert [str(path) for path in (*files, *links) if not path.is_file()] == []


def test_the_checker_accepts_the_plans_of_the_planner(page: dict[str, Any]) -> None:
    shared = optimal = 0
    for _, graph in random_graphs(page):
        plan = page["plan_memory"](graph)
        assert page["check"](graph, plan) == [], graph
        assert plan.bound <= plan.arena <= sum(graph.nbytes.values())
        assert run_in_arena(graph, plan) == run_apart(graph)
        optimal += plan.arena == plan.bound
        shared += any(
            plan.offsets[node.output] in [plan.offsets[value] for value in node.inputs]
            for node in graph.nodes
            if node.kind == "inplace"
        )
    assert shared > GRAPHS // 4
    assert optimal > GRAPHS // 2


def test_a_plan_that_the_checker_accepts_runs_right(page: dict[str, Any]) -> None:
    verdicts = {True: 0, False: 0}
    for rng, graph in random_graphs(page):
        plan = page["plan_memory"](graph)
        for _ in range(5):
            value = rng.choice(list(graph.nbytes))
            offset = rng.randint(-1, plan.arena)
            changed = plan._replace(offsets={**plan.offsets, value: offset})
            accepted = page["check"](graph, changed) == []
            verdicts[accepted] += 1
            assert not accepted or run_in_arena(graph, changed) == run_apart(graph)
    assert min(verdicts.values()) > GRAPHS // 4


def overwrite_whatever_fits(graph: Any, live: Any, places: Any, source: str, output: str) -> bool:
    return bool(graph.nbytes[source] == graph.nbytes[output])


def overwrite_at_last_use(graph: Any, live: Any, places: Any, source: str, output: str) -> bool:
    """True at the last use of `source`, whatever else lies in the buffer."""
    return overwrite_whatever_fits(graph, live, places, source, output) and live[source][1] == live[output][0]


def interfere_strictly(a: Any, b: Any) -> bool:
    """True if the live ranges have more than an end in common."""
    return bool(a.first < b.last and b.first < a.last)


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("can_overwrite", overwrite_whatever_fits),
        ("can_overwrite", overwrite_at_last_use),
        ("interfere", interfere_strictly),
        ("live_ranges", None),
    ],
)
def test_the_checker_refuses_the_plans_of_a_wrong_planner(
    page: dict[str, Any], name: str, mistake: Callable[..., Any] | None
) -> None:
    right = page[name]
    page[name] = mistake or (lambda graph: right(graph._replace(outputs=())))
    refused = 0
    for _, graph in random_graphs(page):
        plan = page["plan_memory"](graph)
        accepted = page["check"](graph, plan) == []
        assert not accepted or run_in_arena(graph, plan) == run_apart(graph)
        refused += not accepted
    assert refused > 0


@pytest.mark.parametrize("offset", [-1, 4097, None])
def test_the_checker_refuses_a_value_outside_the_arena(offset: int | None) -> None:
    names = namespace_of("planner", "checker", "example")
    plan = names["plan"]
    offsets = {value: at for value, at in plan.offsets.items() if value != "squeeze"}
    offsets |= {} if offset is None else {"squeeze": offset}
    violations = names["check"](names["network"], plan._replace(offsets=offsets))
    assert len(violations) == 1
    assert "squeeze" in violations[0]
