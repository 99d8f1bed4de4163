"""Kernels of the nn dialect on PyTorch's ATen. Every family of commands is a module with a dict KERNELS."""
