"""Conversion of inference programs to models: names with several assignments become single-assignment values."""
