"""Planning: from a graph to a memory plan proven by the checker; `pipeline` is the table of contents."""
