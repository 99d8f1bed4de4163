"""Execution of programs in an installed Paddle, each in a separate process."""
