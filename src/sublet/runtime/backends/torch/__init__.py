"""Kernels of the nn dialect on PyTorch's ATen. A family is a module with a dict KERNELS."""
