"""Networks of torchvision's and transformers', compiled for PyTorch: what they give, and what memory and time they take."""
