"""Networks of torchvision and transformers, compiled for PyTorch: what they give, what memory and time they take."""
