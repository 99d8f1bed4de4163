"""Kernels of ONNX Runtime, run at the addresses of the plan."""
