"""The backend of `torch.compile`: captured graphs, run and trained in planned arenas."""
