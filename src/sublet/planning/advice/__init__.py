"""Advice for a smaller arena: changes of options and graph, each judged by a plan of the changed graph."""
