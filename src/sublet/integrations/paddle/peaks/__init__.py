"""Liveness over all blocks, and memory prediction by simulated runs of Paddle's executor and of any plan."""
