"""Writing graphs in Python."""
