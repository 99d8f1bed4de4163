"""Plans that other tools made, judged: against the model they are for, or by the lifetimes that they tell.

placed       ForeignPlan: which tensor lies where, and what the tool says besides
judged       a plan of a model: replayed by the checker, byte by byte
judged_lives a plan that tells lifetimes: tensors that live together lie apart
judgement    what is found: what is wrong, what could not be judged, how far it is from a lower bound
json_form    the documented JSON that any tool can write (docs/foreign.md)
"""

from sublet.foreign.judgement import By, Judgement, Outcome, RegionJudged
from sublet.foreign.lives import judged_lives, judged_packing
from sublet.foreign.placed import ForeignPlan, Placed
from sublet.foreign.replayed import judged

__all__ = [
    "By",
    "ForeignPlan",
    "Judgement",
    "Outcome",
    "Placed",
    "RegionJudged",
    "judged",
    "judged_lives",
    "judged_packing",
]
