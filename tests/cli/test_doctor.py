"""`sublet doctor` finds what is broken, in processes of their own; what is only missing is no fault."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from sublet.cli import doctor
from sublet.cli.doctor import CORES, Health, cache_usage, diagnose_core, diagnose_integration, diagnose_package
from tests.cli.test_startup import modules_after
from tests.support.command_line import Cli

ROOT = Path(__file__).parent.parent.parent


def wing(folder: Path, function: str) -> None:
    """Make a distribution in `folder` with an integration that names a function."""
    (folder / "bad_wing.py").write_text(
        "from sublet.base.errors import MissingExtraError\nfrom sublet.integrations.registry import Integration\n"
        f"INTEGRATION = Integration('bad', suffixes=('.bad',), commands={{'bad': {function!r}}})\n"
        "def works(): pass\n"
    )
    (folder / "needy_wing.py").write_text(
        "from sublet.base.optional_imports import require\nrequire('absent_package', extra='torch')\n"
    )
    metadata = folder / "bad_wing-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-wing\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[sublet.integrations]\nbad = bad_wing:INTEGRATION\n")


@pytest.fixture
def fake_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules new processes import before the installed ones."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return tmp_path


@pytest.mark.parametrize(
    ("source", "remark"),
    [
        ("raise OSError('libnothing.so: no such file')", "OSError: libnothing.so: no such file"),
        ("import os; os.abort()", "the process ended with status -6"),
    ],
)
def test_an_installed_package_that_cannot_be_imported_is_broken(fake_packages: Path, source: str, remark: str) -> None:
    (fake_packages / "onnx.py").write_text(source)
    diagnosis = diagnose_package("onnx", "1.16", ["onnx"])
    assert (diagnosis.health, diagnosis.remark, diagnosis.is_fault) == (Health.BROKEN, remark, True)


def test_a_missing_extra_is_no_fault_and_an_old_version_is() -> None:
    missing = diagnose_package("no-such-package", "1", ["png"])
    assert (missing.health, missing.is_fault) == (Health.MISSING, False)
    assert diagnose_package("no-such-package", "1", []).is_fault
    assert diagnose_package("numpy", "1.26", []).health is Health.WORKS
    assert diagnose_package("numpy", f"{version('numpy')}.1", []).health is Health.TOO_OLD


def test_the_cores_are_those_of_the_build() -> None:
    installed = re.findall(r"install\(TARGETS (\w+) .* sublet/(\S+)\)", (ROOT / "CMakeLists.txt").read_text())
    of_core = [f"sublet/{path}/{name}".replace("/", ".") for name, path in installed if "integrations" not in path]
    assert sorted(CORES) == sorted(of_core)
    assert diagnose_core(CORES[0]).health is Health.WORKS
    assert diagnose_core("sublet.packing.no_core").is_fault


def test_an_integration_must_import_its_functions(fake_packages: Path) -> None:
    wing(fake_packages, "bad_wing:works")
    assert diagnose_integration("bad", "").health is Health.WORKS
    assert diagnose_integration("tflite", "").health is Health.WORKS


def test_an_integration_whose_extra_is_missing_works_without(fake_packages: Path) -> None:
    wing(fake_packages, "needy_wing:read")
    diagnosis = diagnose_integration("bad", "")
    assert (diagnosis.health, "pip install 'sublet[torch]'" in diagnosis.remark) == (Health.WORKS, True)


def test_the_doctor_answers_where_no_other_command_starts(fake_packages: Path) -> None:
    wing(fake_packages, "bad_wing:no_such_function")
    (fake_packages / "ortools.py").write_text("raise ImportError('broken on purpose')")
    plan = subprocess.run([sys.executable, "-m", "sublet", "pack", "--help"], capture_output=True, check=False)
    assert plan.returncode == 1
    words = [sys.executable, "-m", "sublet", "doctor", "--json"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    content = json.loads(ran.stdout)
    assert (ran.returncode, content["exit_status"], content["sublet"]) == (1, 1, version("sublet"))
    health = {each["name"]: each["health"] for name in ("packages", "cores", "integrations") for each in content[name]}
    broken = {name for name, state in health.items() if state == "broken"}
    assert broken == {"ortools", "bad"}
    assert {"numpy", "onnx", "torch", *CORES} <= health.keys()
    assert content["threads"]["usable_cores"] >= 1


def test_the_text_names_the_faults(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    works = doctor.Diagnosis("onnx", Health.WORKS, "1.16", "extra onnx")
    broken = doctor.Diagnosis("torch", Health.BROKEN, "2.6", "\x1b[2JOSError")
    monkeypatch.setattr(doctor, "diagnose", lambda: {"packages": [works]})
    status, out, _ = cli("doctor")
    assert (status, out.splitlines()[-1]) == (0, "all installed parts work")
    monkeypatch.setattr(doctor, "diagnose", lambda: {"packages": [works, broken]})
    status, out, _ = cli("doctor")
    assert (status, out.splitlines()[-1]) == (1, "faults: torch")
    assert "\\x1b[2JOSError" in out


def test_the_cache_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SUBLET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SUBLET_CACHE_BYTES", "4096")
    assert (cache_usage()["caches"], cache_usage()["writable"]) == ({}, True)
    for key in "ab":
        (tmp_path / "cache" / "tuned" / key).mkdir(parents=True)
        (tmp_path / "cache" / "tuned" / key / "file").write_bytes(bytes(100))
    assert cache_usage()["caches"] == {"tuned": {"bytes": 200, "entries": 2}}
    assert cache_usage()["limit_bytes"] == 4096


def test_the_doctor_imports_no_command_and_no_package() -> None:
    loaded = modules_after("import sublet.cli.doctor")
    assert not {"numpy", "onnx", "torch", "sublet.cli.app", "sublet.packing"} & loaded
