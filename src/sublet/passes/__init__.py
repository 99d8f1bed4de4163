"""Graph -> Graph: what makes, simplifies and orders graphs."""
