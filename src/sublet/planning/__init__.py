"""From a graph to a proven memory plan: `pipeline` is the table of contents."""
