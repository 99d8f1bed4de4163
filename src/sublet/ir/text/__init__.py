"""The text form of graphs: `parse(to_text(graph)) == graph`."""

from sublet.ir.text.parser import parse, parse_model
from sublet.ir.text.printer import to_text

__all__ = ["parse", "parse_model", "to_text"]
