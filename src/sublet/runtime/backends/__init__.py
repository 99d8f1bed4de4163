"""Backends: sources of kernels, named as in the options of the user."""
