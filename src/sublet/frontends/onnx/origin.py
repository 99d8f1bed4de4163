"""Where a node of a model comes from, as far as its exporter noted it: a module, a line of a program."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sublet.base.printable import printable

if TYPE_CHECKING:
    import onnx

TRACE = "pkg.torch.onnx.stack_trace"
SCOPES = "pkg.torch.onnx.name_scopes"
"""What PyTorch's exporter calls the lines of Python that made a node, and the path of its module."""

LONGEST = 200
_LINE = re.compile(r'File "([^"\n]{1,400})", line (\d{1,9})')
_NAME = re.compile(r"'([^'\n]{0,400})'")


def origin(node: onnx.NodeProto) -> str:
    """As "in layer1.0.conv1, model.py:12"; "" when the exporter noted nothing."""
    noted = {entry.key: entry.value for entry in node.metadata_props} if hasattr(node, "metadata_props") else {}
    modules = _NAME.findall(noted.get(SCOPES, "")[:4096])
    lines = _LINE.findall(noted.get(TRACE, "")[-4096:])
    # Scopes go from the model down to the operator; the last but one is the module that called it.
    module = f"in {modules[-2]}" if len(modules) > 1 and modules[-2] else ""
    line = f"{lines[-1][0].rsplit('/', 1)[-1]}:{lines[-1][1]}" if lines else ""
    return printable(", ".join(part for part in (module, line) if part))[:LONGEST]
