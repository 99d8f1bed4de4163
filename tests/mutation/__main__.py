"""Whether tests notice one-line mistakes: `make mutants`, a sample of mutants of each folder of src/sublet.

Each mutant runs in a fork of one process that has imported everything, under the tests that run its line: those that
have killed before and the fast ones first, until one fails. One that runs out of time is killed, too. What nobody can
notice is left out by rule (`operators`) or named in `equivalent.txt` with a reason.
"""

from __future__ import annotations

import argparse
import sys
import warnings

import pytest

from tests.mutation.session import Session

TESTS = (
    "tests/planning/test_cases.py",
    "tests/analysis/test_loop_plans.py",
    "tests/analysis/test_residual_copies.py",
    "tests/plan/test_coverage.py",
    "tests/analysis/test_storage_swap.py",
    "tests/plan/test_file.py",
    "tests/planning/test_regions.py",
    "tests/planning/test_bounds.py",
    "tests/analysis/test_streams.py",
    "tests/planning/test_pipeline_fallback.py",
    "tests/analysis/test_updates.py",
    "tests/planning/test_determinism.py",
    "tests/checker",
)
"""What is run for any folder; a folder has its own tests besides."""

OF_FOLDER = {
    "checker": (),
    "analysis": (
        "tests/analysis/test_records.py",
        "tests/integrations/paddle/test_arena.py",
        "tests/integrations/paddle/test_flow.py",
        "tests/integrations/paddle/test_flow_random.py",
    ),
    "packing": ("tests/packing",),
    "runtime": ("tests/runtime", "tests/nn", "tests/cli/test_run.py"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("folders", nargs="*", default=[*OF_FOLDER], metavar="FOLDER", help=", ".join(OF_FOLDER))
    parser.add_argument("--sample", type=int, default=200, help="mutants a folder, of all its functions; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0, help="of a folder, then begin no more; 0: no limit")
    parser.add_argument("--longest", type=float, default=5, help="tests that take more seconds are not run")
    parser.add_argument("--only", default="", help="mutants of which `file:line` begins with this")
    parser.add_argument("--tests", nargs="*", help="these tests, in place of those of the folders")
    options = parser.parse_args()
    tests = options.tests or [*TESTS, *(path for folder in options.folders for path in OF_FOLDER[folder])]
    session = Session(options)
    warnings.simplefilter("ignore")
    plain = ("-s", "-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:terminal")
    status = pytest.main([*dict.fromkeys(tests), *plain], [session])
    return status or session.status


if __name__ == "__main__":
    sys.exit(main())
