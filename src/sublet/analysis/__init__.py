"""Analyses from a graph to a packing problem: control flow, live ranges, buffer sharing and interference."""
