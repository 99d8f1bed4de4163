"""Name resolution and liveness: a single control flow graph over all blocks of a program."""
