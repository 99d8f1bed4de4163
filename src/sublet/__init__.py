"""Sublet gives a neural network the smallest memory it can run in, proves the plan right, and shows it."""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sublet.integrations.registry import installed_integrations

if TYPE_CHECKING:
    from sublet import nn
    from sublet.analysis.options import Options
    from sublet.api.advising import advise
    from sublet.api.binding import with_plan
    from sublet.api.compiling import compile
    from sublet.api.fewer_rows import fewer_rows
    from sublet.api.model_files import read_model
    from sublet.api.plans import assert_fits, assert_no_growth
    from sublet.api.ranges import compile_ranges
    from sublet.api.summary import summary
    from sublet.api.weights import load_weights, open_weights, save_weights
    from sublet.base.errors import SubletError
    from sublet.base.tensor import DType, TensorSpec, Unplannable
    from sublet.checker import check
    from sublet.dynamic.graph import DynamicGraph
    from sublet.integrations.executorch import api as executorch
    from sublet.integrations.onnx.kernels.engine import set_threads
    from sublet.integrations.paddle import api as paddle
    from sublet.integrations.torch import api as torch
    from sublet.integrations.torch.api import from_torch
    from sublet.integrations.torch.module import torch_module
    from sublet.ir.graph import CaseOf, Node, Value, While
    from sublet.ir.model import Model
    from sublet.ir.text import parse, to_text
    from sublet.nn import modules
    from sublet.nn.graph import Graph
    from sublet.nn.modules import layers
    from sublet.nn.tensor import Tensor
    from sublet.packing import STRATEGIES, pack
    from sublet.plan import MemoryPlan
    from sublet.plan.file import load, save
    from sublet.plan.verdict import Advice, Advised, Verdict, verdict
    from sublet.planning.pipeline import plan_memory
    from sublet.runtime.backends.custom_commands import command
    from sublet.runtime.differential import compare
    from sublet.runtime.executable import Executable
    from sublet.runtime.memory import aligned_bytes
    from sublet.runtime.poison import run_poisoned
    from sublet.runtime.ranged import RangedExecutable
    from sublet.runtime.ranged_session import RangedSession
    from sublet.runtime.tiers import TieredExecutable
    from sublet.training import schedules
    from sublet.training.fitting import evaluate, fit, prefetch
    from sublet.training.optimizers import LAMB, SGD, Adam, AdamW, Clipped, RMSProp
    from sublet.training.step import gradients, less_memory, train_step

__all__ = [
    "LAMB",
    "SGD",
    "STRATEGIES",
    "Adam",
    "AdamW",
    "Advice",
    "Advised",
    "CaseOf",
    "Clipped",
    "DType",
    "DynamicGraph",
    "Executable",
    "Graph",
    "MemoryPlan",
    "Model",
    "Node",
    "Options",
    "RMSProp",
    "RangedExecutable",
    "RangedSession",
    "SubletError",
    "Tensor",
    "TensorSpec",
    "TieredExecutable",
    "Unplannable",
    "Value",
    "Verdict",
    "While",
    "advise",
    "aligned_bytes",
    "assert_fits",
    "assert_no_growth",
    "check",
    "command",
    "compare",
    "compile",
    "compile_ranges",
    "evaluate",
    "executorch",
    "fewer_rows",
    "fit",
    "from_torch",
    "gradients",
    "layers",
    "less_memory",
    "load",
    "load_weights",
    "modules",
    "nn",
    "open_weights",
    "pack",
    "paddle",
    "parse",
    "plan_memory",
    "prefetch",
    "read_model",
    "run_poisoned",
    "save",
    "save_weights",
    "schedules",
    "set_threads",
    "summary",
    "to_text",
    "torch",
    "torch_module",
    "train_step",
    "verdict",
    "with_plan",
]

MODULES = {"layers": "nn.modules.layers", "modules": "nn.modules", "nn": "nn", "schedules": "training.schedules"}
"""The modules offered as attributes of the package."""

NAMES = {
    "analysis.options": ("Options",),
    "api.advising": ("advise",),
    "api.plans": ("assert_fits", "assert_no_growth"),
    "api.binding": ("with_plan",),
    "api.compiling": ("compile",),
    "api.fewer_rows": ("fewer_rows",),
    "api.model_files": ("read_model",),
    "api.ranges": ("compile_ranges",),
    "api.summary": ("summary",),
    "api.weights": (
        "load_weights",
        "open_weights",
        "save_weights",
    ),
    "base.errors": ("SubletError",),
    "base.tensor": (
        "DType",
        "TensorSpec",
        "Unplannable",
    ),
    "checker": ("check",),
    "dynamic.graph": ("DynamicGraph",),
    "integrations.onnx.kernels.engine": ("set_threads",),
    "integrations.torch.api": ("from_torch",),
    "integrations.torch.module": ("torch_module",),
    "ir.graph": (
        "CaseOf",
        "Node",
        "Value",
        "While",
    ),
    "ir.model": ("Model",),
    "ir.text": (
        "parse",
        "to_text",
    ),
    "nn.graph": ("Graph",),
    "nn.tensor": ("Tensor",),
    "packing": (
        "STRATEGIES",
        "pack",
    ),
    "plan": ("MemoryPlan",),
    "plan.file": (
        "load",
        "save",
    ),
    "plan.verdict": (
        "Advice",
        "Advised",
        "Verdict",
        "verdict",
    ),
    "planning.pipeline": ("plan_memory",),
    "runtime.backends.custom_commands": ("command",),
    "runtime.differential": ("compare",),
    "runtime.executable": ("Executable",),
    "runtime.memory": ("aligned_bytes",),
    "runtime.poison": ("run_poisoned",),
    "runtime.ranged": ("RangedExecutable",),
    "runtime.ranged_session": ("RangedSession",),
    "runtime.tiers": ("TieredExecutable",),
    "training.fitting": (
        "evaluate",
        "fit",
        "prefetch",
    ),
    "training.optimizers": (
        "Adam",
        "AdamW",
        "Clipped",
        "LAMB",
        "RMSProp",
        "SGD",
    ),
    "training.step": (
        "gradients",
        "less_memory",
        "train_step",
    ),
}
"""The public names by module. A module is imported at the first use of a name, so running a plan loads no planner."""

MODULE_OF = {name: module for module, names in NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Return a public name or module, imported at first use. Raises AttributeError for any other name."""
    found: Any
    if name == "__version__":
        found = import_module("importlib.metadata").version("sublet")
    elif name in MODULE_OF:
        found = getattr(import_module(f"{__name__}.{MODULE_OF[name]}"), name)
    elif module := _public_module(name):
        found = import_module(module)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def _public_module(name: str) -> str:
    """Return the path of the module that the package or an integration offers under `name`; "" without one."""
    if name in MODULES:
        return f"{__name__}.{MODULES[name]}"
    return next((each.api for each in installed_integrations() if each.name == name), "")


class PublicModuleImporter:
    """Importer of the modules offered as attributes: `import sublet.torch` gives the module `sublet.torch`.

    Files of these names would lie beside the rooms, and an integration could not bring one. The base classes in
    `importlib.abc` would double the time of `import sublet`.
    """

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Return the specification of a public module; None for any other module."""
        package, _, name = fullname.rpartition(".")
        loader: Any = self
        return ModuleSpec(fullname, loader) if package == __name__ and _public_module(name) else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the new module to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        """Replace the new, empty module by the public module."""
        name = module.__name__
        sys.modules[name] = import_module(_public_module(name.rpartition(".")[2]))


sys.meta_path.append(PublicModuleImporter())


def __dir__() -> list[str]:
    return __all__
