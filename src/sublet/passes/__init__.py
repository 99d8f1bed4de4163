"""Graph passes: differentiate, simplify, reorder, split and rematerialize a graph."""
