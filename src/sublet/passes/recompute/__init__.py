"""Rematerialization: drop values and recompute them before a late reader, where the peak falls."""
