"""Splitting: compute a node with large operands or results in pieces, each a slice of rows."""
