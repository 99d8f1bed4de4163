"""ExecuTorch: a memory planning algorithm for its pass, and what lies in its programs.

modules    graph modules as ExecuTorch plans them: whose lives are known, what a node runs inside
lives      one clock over a program and all that it runs inside; when the bytes of each tensor are needed
sharing    which tensors are the same bytes: storage bases, the outcomes of a branch
algorithm  the planner, in the terms of ExecuTorch's MemoryPlanningAlgorithmSuite
"""
