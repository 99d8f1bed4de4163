"""Foreign formats in, graphs out: one front-end a format."""
