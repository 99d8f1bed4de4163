"""Plans as C: what is written compiles without a warning, says what the plan says, and its tensors do not collide."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import sublet
from sublet.analysis.options import Options
from sublet.api.exporting import exported
from sublet.errors import PlanError
from sublet.packing import Region
from sublet.plan import MemoryPlan, Outside, Placement
from sublet.plan.export import Told
from sublet.plan.export.names import identifiers
from sublet.plan.figures import multiview
from tests.commands import Cli

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-Wshadow", "-Wcast-align", "-Wundef")
COMPILERS = [
    (name, language, standard)
    for name, language, standard in (
        ("gcc", "c", "c99"), ("gcc", "c", "c11"), ("g++", "c++", "c++17"),
        ("clang", "c", "c99"), ("clang++", "c++", "c++17"),
    )
    if shutil.which(name)
]  # fmt: skip

ROTATION = """
graph @rotation(%x: f32[8], %y: f32[8], %n: i64[]) {
  %a: f32[8], %b: f32[8] = while(%k: i64[]; %p: f32[8] = %x, %q: f32[8] = %y; ) {max_trips = 5} @swap body @body {
    %less: bool[] = nn.less(%k, %n)
    continue if %less
    %c: f32[8] = onnx.Tanh(%p)
    next %q, %c;
  }
  return %a, %b
}
"""


def plans() -> Iterator[tuple[str, MemoryPlan]]:
    yield "squeezenet", sublet.plan_memory(sublet.read_model(LIGHT / "light_squeezenet.onnx"))
    yield "inception", sublet.plan_memory(sublet.read_model(LIGHT / "light_inception_v1.onnx"), Options(io="bound"))


@pytest.fixture(scope="module", params=["squeezenet", "inception"])
def plan(request: pytest.FixtureRequest) -> MemoryPlan:
    return dict(plans())[request.param]


def written(plan: MemoryPlan, folder: Path, sections: dict[str, str] | None = None) -> tuple[Path, Path]:
    """The header and the source in a folder."""
    paths = []
    for name, text in exported(plan, "c", Told(sections or {})).items():
        paths.append(folder / name)
        paths[-1].write_text(text)
    return paths[0], paths[1]


@pytest.mark.parametrize(("compiler", "language", "standard"), COMPILERS)
def test_it_compiles_without_a_warning(
    plan: MemoryPlan, compiler: str, language: str, standard: str, tmp_path: Path
) -> None:
    _, source = written(plan, tmp_path)
    command = [compiler, "-x", language, f"-std={standard}", *WARNINGS, "-c", str(source), "-o", str(tmp_path / "o.o")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc, which is not installed")
def test_tensors_written_in_the_order_of_the_plan_are_not_destroyed(plan: MemoryPlan, tmp_path: Path) -> None:
    """Each buffer is filled with a pattern when it is born, through its pointer, and compared when it dies."""
    header, source = written(plan, tmp_path)
    owners = [place for place in plan.in_arenas if not place.shares]
    names = identifiers(place.value for place in plan.in_arenas)
    prefix = header.name.removesuffix("_memory.h")
    lines = [f'#include "{header.name}"', "#include <stdio.h>", "#include <string.h>", _CHECKS, "int main(void) {"]
    for point in range(len(plan.points)):
        for i, place in enumerate(owners):
            pointer = f"{prefix}_{names[place.value]}_ptr()"
            size = f"{prefix}_{names[place.value]}".upper() + "_BYTES"
            if place.begin == point:
                lines.append(f"  fill((uint8_t *){pointer}, {size}, {i % 251 + 1}u);")
        for i, place in enumerate(owners):
            pointer = f"{prefix}_{names[place.value]}_ptr()"
            size = f"{prefix}_{names[place.value]}".upper() + "_BYTES"
            if place.end == point + 1:
                lines.append(f'  check((uint8_t *){pointer}, {size}, {i % 251 + 1}u, "{names[place.value]}");')
    for place in plan.in_arenas:
        pointer = f"(size_t)((uint8_t *){prefix}_{names[place.value]}_ptr() - {prefix}_arena)"
        lines.append(f'  expect({pointer}, {place.region.offset}u, "{names[place.value]}");')
    lines += ["  return failures != 0;", "}"]
    main = tmp_path / "main.c"
    main.write_text("\n".join(lines))
    program = tmp_path / "main"
    subprocess.run(["gcc", "-std=c99", "-O1", "-w", str(main), str(source), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert not done.returncode, done.stdout[-2000:]


_CHECKS = """
static int failures = 0;
static void fill(uint8_t *at, size_t n, uint8_t pattern) { memset(at, pattern, n); }
static void check(const uint8_t *at, size_t n, uint8_t pattern, const char *name)
{
    size_t i;
    for (i = 0; i < n; ++i) { if (at[i] != pattern) { printf("%s destroyed at %zu\\n", name, i); ++failures; return; } }
}
static void expect(size_t is, size_t should, const char *name)
{
    if (is != should) { printf("%s is at %zu, not %zu\\n", name, is, should); ++failures; }
}
"""


def test_a_wrong_plan_does_not_compile(tmp_path: Path) -> None:
    """What the header asserts is asserted by the compiler: a tensor beyond the end of the arena."""
    made = sublet.plan_memory(sublet.parse("graph @net(%x: f32[16]) { %y: f32[16] = nn.tanh(%x)\n return %y }"))
    first = made.placements[0]
    wrong = replace(made, placements=(replace(first, region=replace(first.region, offset=64)), *made.placements[1:]))
    _, source = written(wrong, tmp_path)
    command = ["cc", "-std=c99", "-c", str(source), "-o", str(tmp_path / "o.o")]
    assert subprocess.run(command, capture_output=True).returncode


def test_a_tensor_with_several_places_has_a_pointer_for_each(tmp_path: Path) -> None:
    made = sublet.plan_memory(sublet.parse(ROTATION))
    several = multiview(made)
    assert several
    header, source = written(made, tmp_path)
    text = header.read_text()
    for value in several:
        assert f"rotation_{value}_0_ptr" in text
        assert f"rotation_{value}_1_ptr" in text
    done = subprocess.run(
        ["cc", "-std=c99", *WARNINGS, "-c", str(source), "-o", str(tmp_path / "o.o")], capture_output=True, text=True
    )
    assert not done.returncode, done.stderr


def test_memories_have_arrays_and_sections_of_their_own(tmp_path: Path) -> None:
    regions = (Region("fast", 600_000, 1), Region("slow", 1 << 30, 10))
    made = sublet.plan_memory(sublet.read_model(LIGHT / "light_squeezenet.onnx"), Options(regions=regions))
    _, source = written(made, tmp_path, {"fast": ".dtcm"})
    assert re.search(r'SUBLET_SECTION\("\.dtcm"\).* uint8_t squeezenet\w*_fast\[', source.read_text())
    with pytest.raises(PlanError, match="there is no memory 'flash'"):
        exported(made, "c", Told({"flash": ".x"}))


def test_names_are_told_apart() -> None:
    names = identifiers(["conv/1", "conv_1", "Conv 1", "1", "für", "*/ evil", ""])
    assert len(set(names.values())) == 7
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names.values())


def test_a_name_ends_no_comment(tmp_path: Path) -> None:
    made = sublet.plan_memory(sublet.parse("graph @net(%x: f32[16]) { %y: f32[16] = nn.tanh(%x)\n return %y }"))

    def renamed(place: Placement) -> Placement:
        return replace(place, value=f"{place.value} */ int evil; /* \n #error \\")

    _, source = written(replace(made, placements=tuple(map(renamed, made.placements))), tmp_path)
    command = ["cc", "-std=c99", *WARNINGS, "-c", str(source), "-o", str(tmp_path / "o.o")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_what_is_not_counted_is_not_exported() -> None:
    made = sublet.plan_memory(sublet.parse("graph @net(%x: f32[16]) { %y: f32[16] = nn.tanh(%x)\n return %y }"))
    partly = replace(made, outside=(Outside("z", "f32[?]", "its shape is not known"),))
    with pytest.raises(PlanError, match=r"'z'.*have no place"):
        exported(partly, "c")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


def test_the_command_checks_a_plan_before_it_is_written(cli: Cli, tmp_path: Path) -> None:
    model, plan = tmp_path / "net.sublet", tmp_path / "net.json"
    model.write_text("graph @net(%x: f32[16]) { %y: f32[16] = nn.tanh(%x)\n %z: f32[16] = nn.add(%x, %y)\n return %z }")
    assert cli("plan", model, "--out", plan)[0] == 0
    assert cli("export", model, "--plan", plan, "--to", "c", "--out", tmp_path / "c")[0] == 0
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["net_memory.c", "net_memory.h"]
    for form, name in (("markdown", "net_memory.md"), ("csv", "net_memory.csv")):
        assert cli("export", model, "--to", form, "--out", tmp_path)[0] == 0
        assert "f32[16]" in (tmp_path / name).read_text()
    plan.write_text(re.sub(r'"offset": ?\d+', '"offset": 0', plan.read_text()))
    assert cli("export", model, "--plan", plan, "--to", "c", "--out", tmp_path / "d")[0] == 2
    assert not (tmp_path / "d").exists()
    assert cli("export", model, "--to", "rust", "--out", tmp_path)[0] == 2
