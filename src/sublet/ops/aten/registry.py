"""Names of PyTorch's operators and enumerations as PyTorch's objects.

A name may come from a file: a `.pt2` program, a graph in text form, a plan. `getattr` on PyTorch's modules imports
modules and reaches any attribute, so a name is looked up in tables of what PyTorch has registered, and nowhere else.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from sublet.base.extras import require

NAMESPACES = ("aten", "_c10d_functional")
"""Namespaces of operators that a program may call."""

REFUSED = re.compile(r"from_file|_print|_cufft_\w+|set_data|retain_grad|record_stream|_backward")
"""Operators, without their overloads, that open files, print, or change PyTorch's own state."""

TAKEN = {
    *("Tensor", "int", "float", "bool", "number", "str"),
    *("ScalarType", "Layout", "Device", "MemoryFormat", "Generator", "Any"),
}
"""Types of arguments that a program may give, as they are or in lists. A generator is always None there, and what may
be anything (the group of a collective) is a text."""

DEVICE_NAME = re.compile(r"(cpu|cuda|meta)(:[0-9]{1,3})?")


@cache
def operators() -> frozenset[str]:
    """Return the names of all operators that a program may call, as `aten.add.Tensor`."""
    c = require("torch", extra="torch")._C
    found = set()
    for full in c._dispatch_get_all_op_names():
        namespace, _, rest = full.partition("::")
        name, _, overload = rest.partition(".")
        if namespace not in NAMESPACES or REFUSED.fullmatch(name):
            continue
        if _takes_data(c._get_schema(f"{namespace}::{name}", overload)):
            found.add(f"{namespace}.{name}.{overload or 'default'}")
    return frozenset(found)


def _takes_data(schema: Any) -> bool:
    """True if all arguments of an operator are tensors, numbers, texts or enumerations."""
    words = {word for each in schema.arguments for word in re.findall(r"\w+", str(each.real_type))}
    return words <= {*TAKEN, "Optional", "List"}


def find_operator(name: str) -> Any:
    """Return the operator `aten.add.Tensor`, or None where PyTorch has none of this name that a program may call."""
    if name not in operators():
        return None
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(require("torch", extra="torch").ops, namespace), packet), overload)


@cache
def _enumerations() -> dict[str, dict[str, Any]]:
    t = require("torch", extra="torch")
    kinds = {"dtype": t.dtype, "layout": t.layout, "memory_format": t.memory_format}
    return {
        kind: {name: each for name, each in vars(t).items() if isinstance(each, cls)} for kind, cls in kinds.items()
    }


def find_named(kind: str, name: str) -> Any:
    """Return the dtype, layout, memory format or device of a name, as `float32`; None where PyTorch has none."""
    if kind == "device":
        return require("torch", extra="torch").device(name) if DEVICE_NAME.fullmatch(name) else None
    return _enumerations()[kind].get(name)
