"""Well-known networks, written with `sublet.Graph`: each function gives a tensor of logits, or of a loss."""
