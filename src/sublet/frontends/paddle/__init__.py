"""The Paddle front end: read, plan and rewrite Paddle programs. Paddle's own kernels run the rewritten programs."""
