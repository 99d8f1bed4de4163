"""Execution of plans: memory, kernels, bound programs, and the Executable. Only this package allocates memory."""
