"""PyTorch programs as models: FX graphs of ATen operators, from `torch.export` and `torch.compile`."""
