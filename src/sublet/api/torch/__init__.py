"""`sublet.torch`: networks of PyTorch.

model = sublet.from_torch(module.eval(), (x,))     # a model, by torch.export
fast = torch.compile(module, backend="sublet")     # a module that runs, and trains, in planned arenas
print(sublet.torch.report())                       # what was planned, and what was left to PyTorch and why
"""

from sublet.api.torch.backend import backend
from sublet.api.torch.exporting import from_torch
from sublet.api.torch.reporting import Compiled, report

__all__ = ["Compiled", "backend", "from_torch", "report"]
