"""Recomputation: values are dropped and computed again before a late reader, where that lowers the peak."""
