"""A number of bytes: the cheapest program found that fits, or the argument that none does."""
