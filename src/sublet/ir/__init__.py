"""The symbolic graph and what can be said about it without memory or streams."""
