"""Plans as C: what is written compiles without a warning, says what the plan says, and its tensors do not collide."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import onnx
import pytest

import sublet
from benchmarks.models.convolutional import MOBILENET_STAGES, mobilenet_v2
from sublet.analysis.options import Options
from sublet.api.plans import export_plan
from sublet.base.errors import PlanError
from sublet.integrations.onnx.reader.model import from_proto
from sublet.packing import MemoryRegion
from sublet.plan import MemoryPlan, Placement, UnplannedValue
from sublet.plan.export import ExportContext
from sublet.plan.export.table import MOST_LETTERS, identifiers
from sublet.plan.records import CopiedMove, Edge, Stride
from sublet.plan.statistics import multiview_values
from tests.plan.export.compilers import COMPILERS, WARNINGS, Compiler
from tests.plan.export.executed import program
from tests.support.command_line import Cli

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
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


PLANS: dict[str, Callable[[], MemoryPlan]] = {
    "mobilenet": lambda: sublet.plan_memory(from_proto(mobilenet_v2(32, 8, MOBILENET_STAGES[:3], 10)).graph),
    "googlenet": lambda: sublet.plan_memory(sublet.read_model(LIGHT / "light_inception_v1.onnx"), Options(io="bound")),
    "loop": lambda: sublet.plan_memory(sublet.parse(ROTATION)),
}


@pytest.fixture(scope="module", params=PLANS)
def plan(request: pytest.FixtureRequest) -> MemoryPlan:
    return PLANS[request.param]()


def test_the_header_lists_the_copies_of_a_run() -> None:
    made = sublet.plan_memory(
        sublet.parse("graph @g(%s: f32[4], %x: f32[4]) { %y: f32[4] = nn.add(%s, %x)\n return %y }")
    )
    copied = replace(made, moves=(CopiedMove(Edge("update"), "y", "s", 16),))
    assert "/* update: copy y to s, 16 bytes */" in export_plan(copied, "c")["g_memory.h"]
    assert "copy y" not in export_plan(made, "c")["g_memory.h"]


def written(plan: MemoryPlan, folder: Path, sections: dict[str, str] | None = None) -> tuple[Path, Path]:
    """The header and the source in a folder."""
    paths = []
    for name, text in export_plan(plan, "c", ExportContext(sections or {})).items():
        paths.append(folder / name)
        paths[-1].write_text(text)
    return paths[0], paths[1]


@pytest.mark.parametrize("compiler", COMPILERS, ids=str)
def test_it_compiles_without_a_warning(plan: MemoryPlan, compiler: Compiler, tmp_path: Path) -> None:
    _, source = written(plan, tmp_path, {"arena": ".bss.dtcm"})
    compiled, said = compiler.objects(source, *WARNINGS)
    assert compiled, said


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc, which is not installed")
def test_tensors_written_in_the_order_of_the_plan_are_not_destroyed(plan: MemoryPlan, tmp_path: Path) -> None:
    header, source = written(plan, tmp_path)
    done = run(plan, header, source)
    assert not done.returncode, done.stdout[-2000:]


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc, which is not installed")
@pytest.mark.parametrize("name", ["mobilenet", "loop"])
def test_a_destroyed_tensor_is_found(name: str, tmp_path: Path) -> None:
    """The same with a tensor that lies where another one is alive."""
    plan = PLANS[name]()
    there, moved = next(
        (a, b)
        for a, b in combinations(plan.in_arenas, 2)
        if a.how == b.how == "own" and a.live[0][0] < b.live[0][0] < a.live[0][1]
        if a.region.nbytes >= b.region.nbytes > 0
    )
    region = replace(moved.region, offset=there.region.offset)
    wrong = replace(plan, placements=tuple(replace(p, region=region) if p is moved else p for p in plan.placements))
    header, source = written(wrong, tmp_path)
    done = run(wrong, header, source)
    assert f"{there.value} destroyed" in done.stdout


def run(plan: MemoryPlan, header: Path, source: Path) -> subprocess.CompletedProcess[str]:
    main, made = header.with_name("main.c"), header.with_name("main")
    main.write_text(program(plan, header.name))
    subprocess.run(["gcc", "-std=c99", "-w", str(main), str(source), "-o", str(made)], check=True)
    return subprocess.run([str(made)], capture_output=True, text=True)


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
    several = multiview_values(made)
    assert several
    header, source = written(made, tmp_path)
    text = header.read_text()
    for value in several:
        assert f"rotation_{value}_ptr_0" in text
        assert f"rotation_{value}_ptr_1" in text
    done = subprocess.run(
        ["cc", "-std=c99", *WARNINGS, "-c", str(source), "-o", str(tmp_path / "o.o")], capture_output=True, text=True
    )
    assert not done.returncode, done.stderr


BRANCHES = """
graph @choosing(%x: f32[3], %which: i64[]) {
  %a: f32[3] = onnx.Tanh(%x)
  %r: f32[3] = case %which else %x @choose {
    arm @squashed {
      yield %a
    }
    arm @spread {
      %b: f32[3] = onnx.Softmax(%x)
      yield %b
    }
  }
  return %r
}
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            ROTATION,
            [
                "x: f32[8], 32 bytes, input",
                "    5 c @0",
                " in swap@2 alive 12-13",
                "iteration r runs @r while r < 2, then @2 + (r - 2) % 2",
                "p: f32[8]; in swap@0 x, in swap@1 y, in swap@2 c 0, in swap@3 c 1",
                "q: f32[8]; in swap@0 y, in swap@1 c 0, in swap@2 c 1, in swap@3 c 0",
                "a: f32[8], output; bound to the last p of swap",
            ],
        ),
        (BRANCHES, ["r: f32[3], output; bound to the result of choose: a of arm 0, b of arm 1, x of no arm"]),
    ],
    ids=["loop", "branch"],
)
def test_what_a_caller_must_know_is_in_the_header_and_in_the_tables(text: str, told: list[str]) -> None:
    """Which tensors are inputs and outputs, what happens when, and where what has no bytes of its own points."""
    graph = sublet.parse(text)
    made, beside = sublet.plan_memory(graph), ExportContext(graph=graph, name="key words")
    header = export_plan(made, "c", beside)["key_words_memory.h"]
    assert isinstance(header, str)
    assert not [line for line in told if f" {line}\n" not in header.replace(" */", "")]
    for form, name in (("markdown", "key_words_memory.md"), ("csv", "key_words_memory.csv")):
        table = str(export_plan(made, form, beside)[name])
        assert not [line for line in told if ";" in line and line.partition("; ")[2] not in table]


@pytest.mark.skipif(not shutil.which("cppcheck"), reason="needs cppcheck, which is not installed")
def test_misra_has_advice_only(plan: MemoryPlan, tmp_path: Path) -> None:
    """No rule that is required: bytes become elements by way of void (11.5), and what is told need not be used."""
    _, source = written(plan, tmp_path)
    command = ["cppcheck", "--addon=misra", "--std=c99", "--quiet", str(source)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "misra-c2012-11.5" in said
    assert set(re.findall(r"misra-c2012-[\d.]+\d", said)) <= {f"misra-c2012-{rule}" for rule in ("11.5", "2.3", "2.5")}


def test_memories_have_arrays_and_sections_of_their_own(tmp_path: Path) -> None:
    regions = (MemoryRegion("fast", 600_000, 1), MemoryRegion("slow", 1 << 30, 10))
    made = sublet.plan_memory(sublet.read_model(LIGHT / "light_squeezenet.onnx"), Options(regions=regions))
    _, source = written(made, tmp_path, {"fast": ".dtcm"})
    assert re.search(r'SUBLET_SECTION\("\.dtcm"\).* uint8_t squeezenet\w*_fast\[', source.read_text())
    with pytest.raises(PlanError, match="unknown memory 'flash'"):
        export_plan(made, "c", ExportContext({"flash": ".x"}))


def test_names_are_told_apart() -> None:
    long = ["x" * 99 + str(i) for i in range(12)]
    names = identifiers(["conv/1", "conv_1", "Conv 1", "1", "für", "*/ evil", "", *long], ["evil"])
    assert len(set(names.values()) - {"evil"}) == 19
    assert max(map(len, names.values())) == MOST_LETTERS
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names.values())


def test_names_of_tensors_do_not_clash_with_others_of_the_header(tmp_path: Path) -> None:
    """A tensor called like the arena, one like a weight, one like a place of a tensor of a loop."""
    text = ROTATION.replace(
        "%n: i64[]) {", "%n: i64[], %arena: f32[3], %weight_w: f32[3], %c_0: f32[5]) {\n weights %w: f32[7]"
    )
    made = sublet.plan_memory(sublet.parse(text.replace("%a, %b\n}", "%a, %b, %arena, %weight_w, %c_0, %w\n}")))
    header, source = written(made, tmp_path)
    assert len(re.findall(r"#define ROTATION_WEIGHT_W\w*_BYTES", header.read_text())) == 2
    command = ["cc", "-std=c99", *WARNINGS, "-c", str(source), "-o", str(tmp_path / "o.o")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_strides_of_loops_that_are_called_alike_are_told_apart() -> None:
    made = sublet.plan_memory(sublet.parse(ROTATION))
    place = replace(made.in_arenas[0], strides=(Stride("round 1", 4), Stride("round-1", 8)))
    others = [each for each in made.placements if each.value != place.value]
    header, _ = export_plan(replace(made, placements=(place, *others)), "c", ExportContext({})).values()
    assert re.findall(r"#define ROTATION_\w+_STRIDE_(\w+) (.*)", header) == [("ROUND_1", "(4)"), ("ROUND_1_2", "(8)")]


def test_a_name_ends_no_comment(tmp_path: Path) -> None:
    made = sublet.plan_memory(sublet.parse("graph @net(%x: f32[16]) { %y: f32[16] = nn.tanh(%x)\n return %y }"))

    def renamed(place: Placement) -> Placement:
        return replace(place, value=f"{place.value} */ int evil; /* \n #error \\")

    _, source = written(replace(made, placements=tuple(map(renamed, made.placements))), tmp_path)
    command = ["cc", "-std=c99", *WARNINGS, "-c", str(source), "-o", str(tmp_path / "o.o")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_a_name_ends_no_row_of_a_table() -> None:
    made = sublet.plan_memory(sublet.parse("graph @net(%x: f32[16]) { %y: f32[16] = nn.tanh(%x)\n return %y }"))
    renamed = tuple(replace(place, value="a | <b>\n\n# c") for place in made.placements)
    table = export_plan(replace(made, placements=renamed, graph="net\n"), "markdown")["net_memory.md"]
    assert "| a \\| &lt;b> # c |" in str(table)
    assert str(table).startswith("# Memory of net\n\n- arena")


def test_what_is_not_counted_is_not_exported() -> None:
    made = sublet.plan_memory(sublet.parse("graph @net(%x: f32[16]) { %y: f32[16] = nn.tanh(%x)\n return %y }"))
    partly = replace(made, outside=(UnplannedValue("z", "f32[?]", "its shape is not known"),))
    with pytest.raises(PlanError, match="without a size in the plan: 'z'"):
        export_plan(partly, "c")


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
