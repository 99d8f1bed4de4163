"""Networks for ExecuTorch, and what its runtime makes of Sublet's plans of them. Runs in a Python that has both."""
