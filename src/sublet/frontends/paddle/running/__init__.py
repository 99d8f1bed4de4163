"""Programs run in an installed Paddle, each in a process of its own."""
