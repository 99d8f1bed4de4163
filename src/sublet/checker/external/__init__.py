"""Verification of memory plans made by other tools: against the model, or by the lifetimes in the plan's file.

ForeignPlan          the plan as plain data: the region and offset of each tensor, and further declarations of the tool
judge_by_replay      judge a plan of a model: the checker replays the model byte by byte
judge_by_lifetimes   judge a plan with lifetimes: tensors with overlapping lifetimes must not overlap in memory
judge_packing        judge the offsets of a packing problem, region by region
ForeignVerdict       the violations, the tensors that could not be judged, and the distance to a lower bound
plan_from_json       the documented JSON format for plans of any tool (docs/foreign.md)
"""

from sublet.checker.external.against_model import judge_by_replay
from sublet.checker.external.by_lifetimes import judge_by_lifetimes, judge_packing
from sublet.checker.external.external_plan import (
    Evidence,
    ForeignOutcome,
    ForeignPlan,
    ForeignVerdict,
    PlacedTensor,
    RegionVerdict,
)

__all__ = [
    "Evidence",
    "ForeignOutcome",
    "ForeignPlan",
    "ForeignVerdict",
    "PlacedTensor",
    "RegionVerdict",
    "judge_by_lifetimes",
    "judge_by_replay",
    "judge_packing",
]
