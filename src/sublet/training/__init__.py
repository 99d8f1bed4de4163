"""Training: steps with gradients and updates, micro-batches, optimizers, and loops over batches."""
