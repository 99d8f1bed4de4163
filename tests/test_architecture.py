"""The structure, tested like behaviour: floors, cycles, who may import whom, names, documents."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

import sublet
from sublet.integrations.registry import installed_integrations, resolve

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "sublet"

# A module may import from its own floor and the floors above it in this list: one floor a room. A room in a room has
# a floor of its own.
FLOORS = (
    "base", "integrations.registry", "ir", "ir.text", "ops", "passes", "passes.autodiff", "passes.splitting",
    "passes.recompute", "passes.ordering", "plan", "plan.export", "checker", "runtime",
    "runtime.backends", "packing", "analysis", "planning", "planning.budget", "checker.external",
    "viz", "nn", "nn.modules", "training", "api", "dynamic", "cli", "integrations.onnx.cache_ops",
    "integrations.onnx.dialect", "integrations.onnx.reader.rules",
    "integrations.onnx.reader", "integrations.onnx.kernels", "integrations.onnx",
    "integrations.paddle.format", "integrations.paddle.operators.rules", "integrations.paddle.operators",
    "integrations.paddle.checking", "integrations.paddle.convert", "integrations.paddle.running",
    "integrations.paddle.peaks", "integrations.paddle.arena",
    "integrations.paddle.policies", "integrations.paddle", "integrations.tflite",
    "integrations.executorch", "integrations.torch.operator_facts", "integrations.torch.operator_call",
    "integrations.torch.dialect",
    "integrations.torch.kernels", "integrations.torch.reader", "integrations.torch.kernel_effects",
    "integrations.torch.compile",
    "integrations.torch.train", "integrations.torch", "integrations", "__main__",
)  # fmt: skip

# Who lives outside one of these rooms comes in by its door.
DOORS = {
    "ir.text": "ir.text",
    "passes.autodiff": "passes.autodiff",
    "integrations.torch.kernels": "integrations.torch.kernels.backend",
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
    "integrations.registry",
    "base.boxes",
    "base.errors",
    "base.extents",
    "base.names",
    "base.tensor",
)
COMMANDS_MAY_REACH = {
    # Records, which api takes and returns.
    "analysis.options", "ir.graph", "ir.model", "ir.recipe", "packing.problem", "planning.budget.result",
    # Functions and packages that the documentation offers to Python users as well.
    "checker", "checker.external", "packing", "planning.pipeline", "runtime.executable", "runtime.differential",
    "runtime.poison",
    # Only commands need these: files of other tools, progress of advice, patches, reports of a run and of copies.
    "checker.external.files", "planning.advice", "planning.budget.patches",
    "runtime.backends", "runtime.profile", "analysis.residual_copies",
}  # fmt: skip
"""The modules that `cli/` and `viz/` import from rooms below `api/`, beside `base/` and `plan/`."""

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
    """The package itself is the last: it offers what the rooms have."""
    rooms = [room for room in FLOORS if f"{module}.".startswith(f"{room}.")]
    return FLOORS.index(max(rooms, key=len)) if module else FLOORS.index("integrations")


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


def vendor(module: str) -> str:
    """Return the vendor of a module in a wing; "" for the core and for the registry."""
    parts = module.split(".")
    return parts[1] if parts[0] == "integrations" and len(parts) > 1 and parts[1] != "registry" else ""


def named_in_texts(module: str) -> set[str]:
    """Return the modules that texts of a module name, as "sublet.ir.graph:Graph": `import_module` imports by text."""
    texts = {
        node.value for node in ast.walk(tree(module)) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    named = {text.removeprefix("sublet.").partition(":")[0] for text in texts if text.startswith("sublet.")}
    return {name for name in named if name in modules()}


def test_the_core_imports_no_integration() -> None:
    """The list of public names, `sublet/__init__.py`, is no code of the core."""
    wings = [
        (module, target)
        for module in modules()
        for target in edges(module) | named_in_texts(module)
        if module and not vendor(module) and vendor(target)
    ]
    assert not wings


def test_integrations_do_not_know_each_other() -> None:
    between = [
        (module, target)
        for module in modules()
        for target in edges(module) | named_in_texts(module)
        if vendor(module) and vendor(target) and vendor(module) != vendor(target)
    ]
    assert not between


def test_every_wing_has_an_entry_point_and_its_record_names_what_exists() -> None:
    assert {each.name for each in installed_integrations()} == {vendor(module) for module in modules()} - {""}
    for each in installed_integrations():
        for name, value in vars(each).items():
            texts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else (value,)
            for text in texts:
                if isinstance(text, str) and ":" in text:
                    assert callable(resolve(text)), f"{each.name}.{name}"


def of_room(room: str) -> list[str]:
    """Return the modules of a room, without rooms in the room that have a floor of their own above."""
    found = [
        module
        for module in modules()
        if module.partition(".")[0] == room and module.partition(".external")[0] == module
    ]
    assert found
    return found


def test_packing_can_be_lifted_out() -> None:
    files = ("disjoint_sets", "errors", "files", "linear_program", "live_curve", "ranges")
    allowed = {"base", *(f"base.{file}" for file in files), *of_room("packing")}
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


def test_commands_and_pictures_import_api_and_records() -> None:
    """Another module below `api/` is for a function of `api/` that calls it."""
    free = {*of_room("api"), *of_room("base"), *of_room("plan"), *of_room("viz"), *of_room("cli")}
    reached = {target for module in (*of_room("cli"), *of_room("viz")) for target in edges(module)}
    assert reached - free - {"integrations.registry"} == COMMANDS_MAY_REACH


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
        "docs/packing.md",
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
            r"`((?:base|ir|ops|passes|plan|analysis|packing|checker|planning|viz|runtime|integrations|nn|training|api|dynamic|cli)"
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


def test_docstrings_name_files_and_modules_that_exist() -> None:
    """Files of users, such as `train.py`, stand in no docstring as `room/file.py` or `room.module`."""
    rooms = "|".join(room for room in FLOORS if "." not in room and not room.startswith("__") and room != "nn")
    names, missing = {path.name for path in SOURCE.rglob("*.py")} | {"script.py", "train.py"}, []
    for module, path in modules().items():
        text = path.read_text(encoding="utf-8")
        missing += [(module, name) for name in re.findall(r"`(\w+\.py)`", text) if name not in names]
        for name in re.findall(rf"`((?:{rooms})\.[a-z_.]+)`", text):
            if name not in modules() and name.rpartition(".")[0] not in modules():
                missing.append((module, name))
    assert not missing


def test_commands_of_the_makefile_name_paths_and_modules_of_tests_that_exist() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    paths = re.findall(r"(?<!\S)(tests/[\w./]+)(?!\S)", text)
    modules = [name.replace(".", "/") + ".py" for name in re.findall(r"-m ((?:tests|benchmarks)\.[\w.]+)", text)]
    assert len(paths) > 5
    assert len(modules) > 10
    files = [ROOT / path for path in paths + modules]
    missing = [path for path in files if not path.exists() and not (path.with_suffix("") / "__main__.py").exists()]
    assert not missing


def test_every_rule_of_the_checker_is_named_by_a_test() -> None:
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/sublet/checker").glob("*.py"))
    rules = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', written)) | set(re.findall(r'Finding\(\s*"([a-z-]+)"', written))
    tested = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    assert len(rules) > 40
    assert [rule for rule in sorted(rules) if rule not in tested] == []


def test_benchmarks_import_names_that_exist() -> None:
    """No test runs the benchmarks, so a renamed module would go unnoticed."""
    files = (ROOT / "benchmarks").rglob("*.py")
    statements = [each for path in files for each in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    names = {name for each in statements for name in imported(each) if name.startswith("sublet.")}
    assert len(names) > 100
    pairs = (full.removeprefix("sublet.").rsplit(".", 1) for full in names if full.count(".") > 1)
    assert [
        (module, name)
        for module, name in pairs
        if f"{module}.{name}" not in modules() and (module not in modules() or name not in bound_names(module))
    ] == []


@cache
def bound_names(module: str) -> set[str]:
    """Names that a module defines, assigns or imports."""
    found: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found.update(alias.asname or alias.name for alias in node.names)
    return found
