"""Lookup of PyTorch's operators and enumerations by name.

A name may come from a file: a `.pt2` program, a graph in text form, a plan. `getattr` on PyTorch's modules would import
modules and reach any attribute. A name is therefore looked up only in tables of registered PyTorch operators.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from sublet.base.optional_imports import require

NAMESPACES = ("aten", "_c10d_functional")
"""Namespaces of operators callable by programs."""

REFUSED_OPERATORS = re.compile(r"from_file|_print|_cufft_\w+|set_data|retain_grad|record_stream|_backward")
"""Operators, without overloads, that open files, print, or change PyTorch's state."""

ALLOWED_TYPES = {
    *("Tensor", "int", "float", "bool", "number", "str"),
    *("ScalarType", "Layout", "Device", "MemoryFormat", "Generator", "Any"),
}
"""Types of arguments allowed in programs, alone or in lists. A generator is always None there, and an argument of any
type (the group of a collective) is a text.
"""

DEVICE_NAME = re.compile(r"(cpu|cuda|meta)(:[0-9]{1,3})?")


@cache
def operators() -> frozenset[str]:
    """Return the names of all operators callable by programs, for example `aten.add.Tensor`."""
    c = require("torch", extra="torch")._C
    names = set()
    for full in c._dispatch_get_all_op_names():
        namespace, _, rest = full.partition("::")
        name, _, overload = rest.partition(".")
        if namespace not in NAMESPACES or REFUSED_OPERATORS.fullmatch(name):
            continue
        if _takes_data(c._get_schema(f"{namespace}::{name}", overload)):
            names.add(f"{namespace}.{name}.{overload or 'default'}")
    return frozenset(names)


def _takes_data(schema: Any) -> bool:
    """True if all arguments of an operator are tensors, numbers, texts or enumerations."""
    words = {word for each in schema.arguments for word in re.findall(r"\w+", str(each.real_type))}
    return words <= {*ALLOWED_TYPES, "Optional", "List"}


def find_operator(name: str) -> Any:
    """Return the operator of a name like `aten.add.Tensor`; None if missing or not callable by programs."""
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
    """Return the dtype, layout, memory format or device with a name like `float32`; None if PyTorch lacks the name."""
    if kind == "device":
        return require("torch", extra="torch").device(name) if DEVICE_NAME.fullmatch(name) else None
    return _enumerations()[kind].get(name)
