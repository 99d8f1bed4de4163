"""The dynamic graph: tensors that are computed at once, and recorded while they are [NNC: dynamic graph]."""
