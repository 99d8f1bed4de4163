"""The structure, tested like behaviour: floors, cycles, who may import whom, names, documents."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import sublet

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "sublet"

# A module may import from its own floor and the floors above it in this list: one floor a room. A room in a room has
# a floor of its own.
FLOORS = (
    "base", "ir", "ir.text", "ops", "passes", "passes.autodiff", "passes.splitting",
    "passes.recompute", "passes.ordering", "passes.patching", "plan", "plan.export", "checker", "runtime",
    "runtime.backends", "packing", "analysis", "planning", "planning.advice",
    "planning.budget", "viz", "frontends.onnx.rules", "frontends.onnx", "frontends.paddle.format",
    "frontends.paddle.operators.rules", "frontends.paddle.operators",
    "frontends.paddle.checking", "frontends.paddle.convert", "frontends.paddle.running", "frontends.paddle.lives",
    "frontends.paddle.peaks", "frontends.paddle.arena", "frontends.paddle.policies.ours",
    "frontends.paddle.policies", "frontends.paddle.transpile",
    "frontends.tflite", "frontends.executorch", "frontends.torch", "frontends", "foreign",
    "nn", "nn.modules", "api", "api.torch", "dynamic", "cli", "__main__",
)  # fmt: skip

# Who lives outside one of these rooms comes in by its door.
DOORS = {
    "ir.text": "ir.text",
    "passes.autodiff": "passes.autodiff",
    "runtime.backends.onnxruntime": "runtime.backends.onnxruntime.backend",
    "runtime.backends.torch": "runtime.backends.torch.backend",
}

CHECKER_MAY_REACH = (
    "checker",
    "ops",
    "ir.graph",
    "ir.dataflow",
    "ir.recipe",
    "plan.schedule",
    "plan.records",
    "plan",
    "base.errors",
    "base.tensor",
)
EMPTY_NAMES = {"info", "data", "manager", "helper", "helpers", "util", "utils", "prep", "misc", "flags", "process"}


@cache
def modules() -> dict[str, Path]:
    """Module name relative to the package ("ir.graph", "" for the package itself) -> file."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py*")):
        if path.suffix not in (".py", ".pyi"):
            continue
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


def imported(node: ast.AST) -> list[str]:
    """Full names of the modules (or their members) an import statement names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


@cache
def edges(module: str) -> frozenset[str]:
    """The modules of the package that `module` imports."""
    found = set()
    for node in ast.walk(tree(module)):
        for name in imported(node):
            if name == "sublet" or name.startswith("sublet."):
                inner = name.removeprefix("sublet").removeprefix(".")
                found.add(inner if inner in modules() else inner.rpartition(".")[0])
    return frozenset(found)


def floor(module: str) -> int:
    """The package itself is the last but the command line: it offers what the rooms have."""
    rooms = [room for room in FLOORS if f"{module}.".startswith(f"{room}.")]
    return FLOORS.index(max(rooms, key=len)) if module else FLOORS.index("dynamic")


def test_few_rooms() -> None:
    assert len([path for path in SOURCE.iterdir() if path.name != "__pycache__"]) <= 20


def test_imports_only_go_down() -> None:
    """Each module from its own floor and those below."""
    up = [(module, target) for module in modules() for target in edges(module) if floor(target) > floor(module)]
    assert not up


@pytest.mark.parametrize("room", DOORS)
def test_a_room_is_entered_by_its_door(room: str) -> None:
    def inside(module: str) -> bool:
        return f"{module}.".startswith(f"{room}.")

    entered = {target for module in modules() if not inside(module) for target in edges(module) if inside(target)}
    assert entered == {DOORS[room]}


def test_backends_do_not_know_each_other() -> None:
    """But for the one place where they are listed, and what ONNX's have in common."""
    room = "runtime.backends."
    for module in modules():
        if module.startswith(room) and module != f"{room}registry":
            near = [target.removeprefix(room) for target in edges(module) if target.startswith(room)]
            name = module.removeprefix(room).partition(".")[0]
            assert {target.partition(".")[0] for target in near} <= {name, "onnx_nodes"}


def of_room(room: str) -> list[str]:
    found = [module for module in modules() if module.partition(".")[0] == room]
    assert found
    return found


def test_packing_can_be_lifted_out() -> None:
    allowed = {"base", "base.errors", "base.files", "base.json_text", "base.ranges", *of_room("packing")}
    assert not [(module, edges(module) - allowed) for module in of_room("packing") if edges(module) - allowed]


def test_checker_shares_no_code_with_the_planner() -> None:
    reached, todo = set(), of_room("checker")
    while todo:
        current = todo.pop()
        if current not in reached:
            reached.add(current)
            todo += edges(current)
    strangers = {r for r in reached if r not in CHECKER_MAY_REACH and r.partition(".")[0] not in ("checker", "ops")}
    assert not strangers


def test_ir_knows_no_memory_and_no_streams() -> None:
    known = {(module, target) for module in of_room("ir") for target in edges(module)}
    assert not [pair for pair in known if pair[1].partition(".")[0] in ("plan", "packing", "analysis", "runtime")]


def test_no_import_inside_a_function() -> None:
    inside = [
        (module, name)
        for module in modules()
        for function in ast.walk(tree(module))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        for name in imported(node)
    ]
    assert not inside, "use sublet.base.optional_imports.require for an optional dependency"


def body_lines(node: ast.FunctionDef) -> int:
    """Return the number of lines of a function's body without its docstring: a signature and help are no code."""
    first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0]
    return (node.end_lineno or 0) - first.lineno + 1


def test_rooms_are_small_and_named() -> None:
    wrong = []
    for module, path in modules().items():
        lines = path.read_text(encoding="utf-8").count("\n")
        wrong += [f"{module} has {lines} lines"] if lines > 500 else []
        functions = [node for node in ast.walk(tree(module)) if isinstance(node, ast.FunctionDef)]
        lengths = [(node.name, body_lines(node)) for node in functions]
        wrong += [f"{module}.{name} has {length} lines" for name, length in lengths if length > 55]
        names = {*module.split("."), *(name.strip("_") for name, _ in lengths)}
        wrong += [f"{module} names something {name}" for name in names & EMPTY_NAMES]
        if path.suffix != ".pyi" and not ast.get_docstring(tree(module)):
            wrong.append(f"{module} does not say what it is")
    assert not wrong


def test_public_names_exist_and_are_listed() -> None:
    assert sorted(sublet.__all__) == sorted(set(sublet.__all__))
    for name in sublet.__all__:
        assert getattr(sublet, name).__doc__


def test_every_exception_is_drawn() -> None:
    drawn = ast.get_docstring(tree("base.errors")) or ""
    for node in tree("base.errors").body:
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Error", "Violation")):
            assert node.name in drawn or node.name == "FindingsError"


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "docs/benchmarks.md",
        "docs/budget.md",
        "docs/commands.md",
        "docs/crossing.md",
        "docs/export.md",
        "docs/foreign.md",
        "docs/executorch.md",
        "docs/glossary.md",
        "docs/loops.md",
        "docs/memory.md",
        "docs/paddle.md",
        "docs/patches.md",
        "docs/security.md",
        "docs/threads.md",
        "docs/proofs.md",
        "docs/text_form.md",
        "docs/torch.md",
    ],
)
def test_documents_name_real_paths(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:src|tests|docs|benchmarks)/[\w./-]+)`", text))
    paths |= {
        f"src/sublet/{path}"
        for path in re.findall(
            r"`((?:base|ir|ops|passes|plan|analysis|packing|checker|planning|viz|runtime|frontends|foreign|nn|api|dynamic|cli)"
            r"/[\w./]*)`",
            text,
        )
    }
    missing = [path for path in sorted(paths) if not (ROOT / path).exists()]
    assert not missing


def test_architecture_shows_the_rooms_as_drawn() -> None:
    """ARCHITECTURE.md has the output of `python -m tests.draw_rooms`."""
    command = [sys.executable, "-m", "tests.draw_rooms"]
    drawn = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert f"```text\n{drawn}```\n" in (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_architecture_has_a_row_for_every_room() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = {room for room in FLOORS if "." not in room and not room.startswith("__")}
    assert set(re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE)) == rooms


def test_architecture_names_definitions_and_tests_that_exist() -> None:
    """Each "`file`: `name`" is a definition in the file, and each "`file::test`" a test."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    names = [(SOURCE / path, name) for path, name in re.findall(r"`([\w/]+\.py)`: `(\w+)`", text)]
    tests = [(ROOT / path, name) for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)]
    assert len(names) > 25
    assert len(tests) > 10
    missing = [
        (path.name, name)
        for path, name in names + tests
        if not re.search(
            rf"^\s*(?:(?:def|class) {name}\b|{name}\b\s*[:=])", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    assert not missing


def test_every_rule_of_the_checker_is_named_by_a_test() -> None:
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/sublet/checker").glob("*.py"))
    rules = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', written)) | set(re.findall(r'Finding\(\s*"([a-z-]+)"', written))
    tested = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    assert len(rules) > 40
    assert [rule for rule in sorted(rules) if rule not in tested] == []
