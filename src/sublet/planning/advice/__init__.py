"""What to change so that an arena gets smaller: every figure is that of a plan of the changed graph."""
