"""Patches: the front of a network computed piece by piece of its output, so that no large map is ever whole."""
