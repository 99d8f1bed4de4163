"""ExecuTorch front-end: a memory planning algorithm for ExecuTorch's pass, and a verifier of the plans in .pte files.

api            the planner, with the interface of ExecuTorch's MemoryPlanningAlgorithmSuite
graph_program  graph modules as steps, for the replay of a plan
instructions   .pte files as steps
replay         the check of a plan: each step reads intact tensors
plan_reader    verdicts on .pte files
"""

from sublet.integrations.registry import Integration

INTEGRATION = Integration(
    "executorch",
    plan_suffixes=(".pte",),
    judge_plan="sublet.integrations.executorch.plan_reader:judge_pte",
    api="sublet.integrations.executorch.api",
)
