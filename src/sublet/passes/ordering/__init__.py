"""Orders of the nodes of a program: bytes alive in any of them, a search for the least, and what none goes below."""
