"""Networks of torchvision's and transformers', compiled for PyTorch: what they compute, what memory and time they take."""
