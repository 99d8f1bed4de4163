"""Programs of Paddle: read, planned, rewritten; their kernels stay Paddle's."""
