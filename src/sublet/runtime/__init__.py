"""Running a plan: memory, kernels, the program, the executable. Only this package allocates."""
