"""Sublet gives a neural network the smallest memory it can run in, proves the plan right, and shows it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sublet import nn
from sublet.api.binding import with_plan
from sublet.api.model_files import read_model
from sublet.api.weights import load_weights, open_weights, save_weights
from sublet.base.errors import SubletError
from sublet.base.tensor import DType, TensorSpec, Unplannable
from sublet.checker import check
from sublet.integrations.registry import installed_integrations
from sublet.ir.graph import CaseOf, Node, Value, While
from sublet.ir.model import Model
from sublet.ir.text import parse, to_text
from sublet.nn import modules
from sublet.nn.graph import Graph
from sublet.nn.modules import layers
from sublet.nn.tensor import Tensor
from sublet.plan import MemoryPlan
from sublet.plan.advice import Advice, Advised
from sublet.plan.file import load, save
from sublet.plan.verdict import Verdict, verdict
from sublet.runtime.backends.custom_commands import command
from sublet.runtime.differential import compare
from sublet.runtime.executable import Executable
from sublet.runtime.memory import aligned_bytes
from sublet.runtime.poison import run_poisoned
from sublet.training import schedules
from sublet.training.optimizers import LAMB, SGD, Adam, AdamW, Clipped, RMSProp

if TYPE_CHECKING:
    from sublet.analysis.options import Options
    from sublet.api.advising import advise
    from sublet.api.compiling import compile
    from sublet.api.fewer_rows import fewer_rows
    from sublet.api.summary import summary
    from sublet.dynamic.graph import DynamicGraph
    from sublet.integrations.executorch import api as executorch
    from sublet.integrations.paddle import api as paddle
    from sublet.integrations.torch import api as torch
    from sublet.integrations.torch.api import from_torch
    from sublet.integrations.torch.module import torch_module
    from sublet.packing import STRATEGIES, pack
    from sublet.planning.pipeline import plan_memory
    from sublet.training.fitting import evaluate, fit, prefetch
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
    "SubletError",
    "Tensor",
    "TensorSpec",
    "Unplannable",
    "Value",
    "Verdict",
    "While",
    "advise",
    "aligned_bytes",
    "check",
    "command",
    "compare",
    "compile",
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
    "summary",
    "to_text",
    "torch",
    "torch_module",
    "train_step",
    "verdict",
    "with_plan",
]

PLANNING = {
    "DynamicGraph": "dynamic.graph",
    "STRATEGIES": "packing",
    "Options": "analysis.options",
    "advise": "api.advising",
    "compile": "api.compiling",
    "from_torch": "integrations.torch.module",
    "evaluate": "training.fitting",
    "fewer_rows": "api.fewer_rows",
    "fit": "training.fitting",
    "gradients": "training.step",
    "less_memory": "training.step",
    "pack": "packing",
    "plan_memory": "planning.pipeline",
    "torch_module": "integrations.torch.module",
    "prefetch": "training.fitting",
    "summary": "api.summary",
    "train_step": "training.step",
}
"""Names of the planner and tracer, with their modules: imported on first use, so running a plan loads no planner."""


def __getattr__(name: str) -> Any:
    module = next((each.api for each in installed_integrations() if each.name == name), "")
    if module:
        return import_module(module)
    if name not in PLANNING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{PLANNING[name]}"), name)


def __dir__() -> list[str]:
    return __all__
