"""Small ONNX models in ONNX's own text form, for tests of the front-end."""

from __future__ import annotations

import onnx
import onnx.parser

HEADER = '<ir_version: 9, opset_import: ["" : 17]>\n'


def parsed(text: str, header: str = HEADER) -> onnx.ModelProto:
    """The model whose graph is `text`."""
    return onnx.parser.parse_model(header + text)


ARMS = """g (bool c, float[7, 64] x) => (y) {
  y = If (c) <
    then_branch = yes () => (a) { s = Constant <value_ints = [128, 64]> () a = Reshape (x, s) },
    else_branch = no () => (b) { b = Neg (x) }
  >
}"""
"""A graph with a node that cannot run in one branch."""
