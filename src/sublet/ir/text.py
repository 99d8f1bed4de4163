"""The text form of graphs: `parse(to_text(graph)) == graph`."""

from sublet.ir.parser import parse
from sublet.ir.printer import to_text

__all__ = ["parse", "to_text"]
