"""The dynamic graph: commands compute at once, and are recorded for gradients [NNC: dynamic graph]."""
