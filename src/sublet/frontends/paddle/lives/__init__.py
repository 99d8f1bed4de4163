"""What names mean, and when what they hold is alive: one flow over all blocks."""
