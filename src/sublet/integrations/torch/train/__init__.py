"""Whole training steps of PyTorch: trace, plan and run forward, backward and optimizer in one arena."""
