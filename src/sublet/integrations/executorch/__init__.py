"""ExecuTorch front-end: a memory planning algorithm for ExecuTorch's pass, and a verifier of the plans in .pte files.

graph_modules      graph modules as planned by ExecuTorch: node live ranges, and modules run by control flow
live_ranges        a common clock over a program and all inner modules; live ranges of tensors
shared_places      tensors sharing bytes: storage bases, outcomes of branches
algorithm          the planner, with the interface of ExecuTorch's MemoryPlanningAlgorithmSuite
graph_program      graph modules as steps, for the replay of a plan
pte, instructions  .pte files as steps
replay             the check of a plan: each step reads intact tensors
content_liveness   live ranges of contents, lower bounds, and the data of the picture
plan_reader        verdicts on .pte files
"""

from sublet.integrations.registry import Integration

INTEGRATION = Integration(
    "executorch",
    plan_suffixes=(".pte",),
    judge_plan="sublet.integrations.executorch.plan_reader:judge_pte",
    api="sublet.integrations.executorch.api",
)
