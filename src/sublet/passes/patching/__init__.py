"""Patch-based inference: compute the front of a network patch by patch, so no large feature map is ever whole."""
