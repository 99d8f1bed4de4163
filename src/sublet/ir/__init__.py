"""The symbolic graph, its text form, and queries and rewrites independent of memory and streams."""
