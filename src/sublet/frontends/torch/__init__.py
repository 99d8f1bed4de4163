"""Programs of PyTorch: ATen operators in a graph of FX, from `torch.export`, as models."""
