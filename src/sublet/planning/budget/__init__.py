"""Memory budgets: the cheapest program found within a number of bytes, or the proof that no program fits."""
