"""The registry of integrations: one record for each vendor, found by entry points.

A package adds an integration under the entry-point group "sublet.integrations": a name, and an `Integration`. The core
imports no integration. A record names functions as texts, "module:function", and `resolve` imports a function at first
use. So planning an ONNX model imports no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from sublet.base.errors import SubletError

ENTRY_POINTS = "sublet.integrations"


@dataclass(frozen=True)
class Integration:
    """The models, operators, kernels, plans and commands of one vendor. Functions are named as "module:function".

    name                the vendor, such as "onnx"
    suffixes            the suffixes of model files, in lower case
    file_names          the whole names of model files without a telling suffix
    read_model          (path, dims, optimize, assume) -> Model
    options             the options of `read_model` other than the path: of "dims", "shape", "optimize", "assume",
                        "const" and "loop_limits"; both functions of reading have a keyword `const` or `loop_limits` if
                        and only if that is an option
    object_attributes   the attributes by which a model in memory is recognised
    read_object         (object, dims, optimize, assume) -> Model
    optimize_levels     the levels of the vendor's own optimiser, the strongest last
    optimizer_package   the package with the optimiser
    optimizer_versions  () -> the versions that determine the optimised graph, as text
    alignment           the alignment in bytes of all offsets for the vendor's runtime; 0 for Sublet's default
    embedded_plan       (model, path) -> the model and the external plan in its file
    embedded_options    (path) -> the arguments of `read_source` recorded beside the plan, by name
    plan_suffixes       the suffixes of files that `judge_plan` judges without a model
    judge_plan          (path) -> ForeignVerdict
    problem_suffixes    the suffixes of recorded allocations
    problem_json        (decoded JSON) -> True if the JSON holds recorded allocations
    read_problem        (path) -> Problem
    dialects            op prefix -> function from the name of an op to its `Op`
    grow_in_loops       (model) -> the model with a buffer for each carried value that grows in a loop over ranges
    grow_in_place       (model, state) -> the model with caches that grow in place, and the reasons for the other caches
    backends            backend -> function from a model to its `Backend`; the fastest first
    packages            backend -> the package that it needs
    node_bytes          the bytes that the fastest backend keeps for the kernel of a node, measured
    reference_kernels   op prefix -> function (node, opsets) to the reference kernel
    channel_blocks      (model) -> by value, the channels of a block, for maps [N, C / block, H, W, block] in memory
    region_splits       functions (graph, name of a node) -> graphs with a region around the node in two halves
    exporters           export form -> `Exporter`
    commands            words of the command line -> function, such as "transpile" or "export tflm"
    remark              () -> a restriction for the installed version of the vendor's package; "" for none
    api                 the module offered as `sublet.<name>`
    """

    name: str
    suffixes: tuple[str, ...] = ()
    file_names: tuple[str, ...] = ()
    read_model: str = ""
    options: tuple[str, ...] = ()
    object_attributes: tuple[str, ...] = ()
    read_object: str = ""
    optimize_levels: tuple[str, ...] = ()
    optimizer_package: str = ""
    optimizer_versions: str = ""
    alignment: int = 0
    embedded_plan: str = ""
    embedded_options: str = ""
    plan_suffixes: tuple[str, ...] = ()
    judge_plan: str = ""
    problem_suffixes: tuple[str, ...] = ()
    problem_json: str = ""
    read_problem: str = ""
    dialects: Mapping[str, str] = field(default_factory=dict)
    grow_in_loops: str = ""
    grow_in_place: str = ""
    backends: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    node_bytes: int = 0
    reference_kernels: Mapping[str, str] = field(default_factory=dict)
    channel_blocks: str = ""
    region_splits: tuple[str, ...] = ()
    exporters: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""
    api: str = ""

    def reads(self, path: Path) -> bool:
        """Return True if the name of the file, its suffix in any case, is of a model of this vendor."""
        return path.suffix.lower() in self.suffixes or path.name in self.file_names


@lru_cache(maxsize=1)
def installed_integrations() -> tuple[Integration, ...]:
    """Return all installed integrations, sorted by name."""
    return tuple(point.load() for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name))


def resolve(function: str) -> Any:
    """Return the object named "module:name"; the module is imported at first use."""
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)


def resolve_entry(table: str, key: str) -> Any | None:
    """Return the object under `key` in the field `table` of the first integration with such an entry; else None."""
    for integration in installed_integrations():
        entries: Mapping[str, str] = getattr(integration, table)
        if key in entries:
            return resolve(entries[key])
    return None


def command(words: str) -> Callable[..., Any]:
    """Return the function of a command of an integration. Raises SubletError if no installed integration offers it."""
    function: Callable[..., Any] | None = resolve_entry("commands", words)
    if function is None:
        raise SubletError(f"no installed integration offers `sublet {words}`: reinstall sublet")
    return function


def integration_of_file(path: Path) -> Integration | None:
    """Return the integration that reads the model file; None if no integration does."""
    return next((each for each in installed_integrations() if each.reads(path)), None)


def integration_of_object(model: Any) -> Integration | None:
    """Return the integration whose models in memory have the attributes of `model`; None if no integration has."""
    candidates = (each for each in installed_integrations() if each.object_attributes)
    return next((each for each in candidates if all(hasattr(model, name) for name in each.object_attributes)), None)
