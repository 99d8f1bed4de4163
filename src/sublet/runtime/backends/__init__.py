"""Where kernels come from, a backend each, called as the user calls it."""
