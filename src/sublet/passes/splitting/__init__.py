"""Splitting: a node that needs too much at once is done in pieces, a slice of its rows each."""
