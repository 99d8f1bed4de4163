"""Sublet gives a neural network the smallest memory it can run in, proves the plan right, and shows it."""

from sublet import layers, nn
from sublet.advised import Advice, Advised
from sublet.advising import advise
from sublet.budget import Verdict, verdict
from sublet.builder.graph import Graph
from sublet.builder.tensor import Tensor
from sublet.checker import check
from sublet.compiling import compile
from sublet.errors import SubletError
from sublet.frontends.model import read_model
from sublet.ir.graph import CaseOf, Node, Value, While
from sublet.ir.text import parse, to_text
from sublet.model import Model
from sublet.optimizers import LAMB, SGD, Adam, AdamW, Clipped, RMSProp
from sublet.packing import STRATEGIES, pack
from sublet.plan import MemoryPlan
from sublet.plan_file import load, save
from sublet.planning import Options, plan_memory
from sublet.runtime.commands import command
from sublet.runtime.comparing import compare
from sublet.runtime.executable import Executable
from sublet.runtime.memory import aligned_bytes
from sublet.runtime.poison import run_poisoned
from sublet.tensor import DType, TensorSpec, Unplannable
from sublet.training import gradients, less_memory, train_step

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
    "gradients",
    "layers",
    "less_memory",
    "load",
    "nn",
    "pack",
    "parse",
    "plan_memory",
    "read_model",
    "run_poisoned",
    "save",
    "to_text",
    "train_step",
    "verdict",
]
