"""The memory map: a picture of time x bytes, in the terminal, as PNG or SVG, and as one HTML page."""
