"""Facts of ATen operators by minor version of PyTorch: overwritable inputs, `out=` forms, randomness.

`facts.json` was measured by running PyTorch's operators with the output over each input. A group of the file holds the
records that are equal in several versions. A version without measurement has the facts that hold in all known versions.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from sublet.base.errors import SubletError
from sublet.base.optional_imports import imported_module, version_of


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """The facts of an operator.

    overwrites  the positions of arguments overwritable with the first output
    out         the overload writing to given tensors; "" if missing, or if PyTorch copies internally
    inside      the overload overwriting the first argument, for operators without `out`
    random      True if the operator draws from PyTorch's generator
    """

    overwrites: tuple[int, ...] = ()
    out: str = ""
    inside: str = ""
    random: bool = False


@cache
def _facts_file() -> Any:
    return json.loads(files(__package__).joinpath("facts.json").read_text(encoding="utf-8"))


def known_versions() -> tuple[str, ...]:
    """Return the minor versions of PyTorch with measured facts, such as "2.13", the oldest first."""
    return tuple(_facts_file()["versions"])


def known_version(version: str) -> str:
    """Return the minor version with facts for a full version, "2.13" for "2.13.0+cpu"; "" for an unknown version."""
    minor = ".".join(version.split(".")[:2])
    return minor if minor in known_versions() else ""


def installed_version() -> str:
    """Return the version of the installed PyTorch, without an import of PyTorch; "" without PyTorch."""
    return str(getattr(imported_module("torch"), "__version__", "")) or _packaged_version()


@cache
def _packaged_version() -> str:
    return version_of("torch")


@cache
def facts_of_version(minor: str) -> Mapping[str, OperatorFacts]:
    """Return the facts of a known minor version by name, such as `add.Tensor`; for "", the common facts."""
    if not minor:
        return common_facts([facts_of_version(each) for each in known_versions()])
    groups = [group["operators"] for group in _facts_file()["groups"] if minor in group["versions"]]
    return {
        name: OperatorFacts(**{**record, "overwrites": tuple(record.get("overwrites", ()))})
        for operators in groups
        for name, record in operators.items()
    }


def common_facts(versions: Sequence[Mapping[str, OperatorFacts]]) -> Mapping[str, OperatorFacts]:
    """Return the facts that hold in all versions, for the operators that all versions have.

    An input is overwritable only if all versions may overwrite the input by the same overload.
    """
    first, *rest = versions
    names = [name for name in first if all(name in other for other in rest)]
    return {name: _common_record([each[name] for each in versions]) for name in names}


def _common_record(records: Sequence[OperatorFacts]) -> OperatorFacts:
    overloads = {(record.out, record.inside) for record in records}
    out, inside = overloads.pop() if len(overloads) == 1 else ("", "")
    overwrites = set.intersection(*(set(record.overwrites) for record in records)) if out or inside else set()
    return OperatorFacts(tuple(sorted(overwrites)), out, inside, any(record.random for record in records))


def facts_by_name() -> Mapping[str, OperatorFacts]:
    """Return the facts of the installed PyTorch by name, such as `add.Tensor`."""
    return facts_of_version(known_version(installed_version()))


def version_error(version: str) -> str:
    """Return an error text for a version of PyTorch older than the oldest known version; else ""."""
    oldest, numbers = known_versions()[0], _minor_numbers(version)
    if not numbers or numbers >= _minor_numbers(oldest):
        return ""
    return f"Sublet needs PyTorch {oldest} or newer, this is PyTorch {version}. Install torch>={oldest}."


def version_remark(version: str) -> str:
    """Return the restriction of plans for a version of PyTorch without measured facts; "" for a known version."""
    if known_version(version):
        return ""
    oldest, *_, newest = known_versions()
    return (
        f"Sublet's operator facts are of PyTorch {oldest} to {newest}, this is PyTorch {version}: plans use only the "
        "facts that hold in all of these versions"
    )


def installed_remark() -> str:
    """Return the error or the restriction for the installed version of PyTorch; "" for a known version or none."""
    version = installed_version()
    return (version_error(version) or version_remark(version)) if version else ""


def require_supported_version(version: str, error: type[SubletError], where: str = "") -> None:
    """Raise `error` for a version older than the oldest known one; warn, once a process, about an unknown version.

    Args:
        version: the version of PyTorch.
        error: the type of the error.
        where: the place in front of the error text, such as "node y: ".
    """
    wrong = version_error(version)
    if wrong:
        raise error(f"{where}{wrong}")
    _warn_unknown(version)


@cache
def _warn_unknown(version: str) -> None:
    """Warn about a version without measured facts; the cache keeps the warning to one a process."""
    remark = version_remark(version)
    if remark:
        warnings.warn(f"sublet: {remark}", stacklevel=3)


def _minor_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of major and minor version; () for a text without these numbers."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return tuple(map(int, match.groups())) if match else ()
