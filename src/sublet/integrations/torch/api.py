"""`sublet.torch`: plan, run and train PyTorch networks in planned arenas.

model = sublet.from_torch(module.eval(), (x,))           # a model for inference, by torch.export
fast = torch.compile(module, backend="sublet")           # inference and training in planned arenas
step = sublet.torch.train_step(module, loss, optimizer)  # forward, backward and update as one plan; step(x, labels)
plans = sublet.torch.rank_plans(build, 8)                # the memory of each rank of a parallel training
print(sublet.torch.estimate(module, loss, optimizer, x)) # bytes of a step, eager and planned; tensors may be on meta
print(sublet.torch.report())                             # graphs planned, and graphs left to PyTorch with the reason
"""

from sublet.integrations.torch.compile.backend import backend
from sublet.integrations.torch.compile.compile_report import Compiled, report
from sublet.integrations.torch.estimate import Estimate, estimate
from sublet.integrations.torch.memory_searches import LargestBatch, MemoryFrontier, frontier, largest_batch
from sublet.integrations.torch.module import from_torch
from sublet.integrations.torch.ranks import RankPlan, RankPlans, rank_plans
from sublet.integrations.torch.sublet_memory import SubletMemory
from sublet.integrations.torch.train.step import TrainStep, train_step

__all__ = [
    "Compiled", "Estimate", "LargestBatch", "MemoryFrontier", "RankPlan", "RankPlans", "SubletMemory", "TrainStep",
    "backend", "estimate", "from_torch", "frontier", "largest_batch", "rank_plans", "report", "train_step",
]  # fmt: skip
