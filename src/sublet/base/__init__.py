"""Foundations of all packages: files, optional imports, a disk cache, sizes and names as text, tensor types, ranges."""
