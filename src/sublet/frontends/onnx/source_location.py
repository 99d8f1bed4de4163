"""Source location of a node recorded by the exporter: a module path and a line of a program."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sublet.base.escape import printable

if TYPE_CHECKING:
    import onnx

STACK_TRACE_KEY = "pkg.torch.onnx.stack_trace"
NAME_SCOPES_KEY = "pkg.torch.onnx.name_scopes"
"""The metadata keys of PyTorch's exporter for the Python stack of a node, and for the module path."""

MAX_CHARACTERS = 200
_LINE = re.compile(r'File "([^"\n]{1,400})", line (\d{1,9})')
_NAME = re.compile(r"'([^'\n]{0,400})'")


def source_location_of(node: onnx.NodeProto) -> str:
    """Return the source location as "in layer1.0.conv1, model.py:12"; "" without a recorded location."""
    noted = {entry.key: entry.value for entry in node.metadata_props} if hasattr(node, "metadata_props") else {}
    modules = _NAME.findall(noted.get(NAME_SCOPES_KEY, "")[:4096])
    lines = _LINE.findall(noted.get(STACK_TRACE_KEY, "")[-4096:])
    # Scopes go from the model down to the operator; the second to last is the module calling the operator.
    module = f"in {modules[-2]}" if len(modules) > 1 and modules[-2] else ""
    line = f"{lines[-1][0].rsplit('/', 1)[-1]}:{lines[-1][1]}" if lines else ""
    return printable(", ".join(part for part in (module, line) if part))[:MAX_CHARACTERS]
