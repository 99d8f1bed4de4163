"""Offline dynamic storage allocation: a Problem in, a Packing out. Knows bytes and time, no tensors.

    problem                           question and answer: Buffer, Precedence, Companion, Problem, Packing
    files, csv_format, json_format    problems from files, packings to files
    ties, plain                       companions, pins and pairs that may overlap, in terms all strategies know
    conflicts, succession             who must not overlap whom; who may take over whose bytes
    greedy                            strategies that fill holes in some order
    allocation_order, interference_order    strategies that fill an allocation_graph
    strategies                        all of them by name
    bounds, antichain                 how few bytes can do
    validate                          whether a packing is right
    settle                            bytes saved where companions lie at distances
    regions, region_choice, region_cost    several memories: which buffer goes into which
    apart                             a memory that only transfers touch

`auto.pack` ties these together: the best of all strategies, checked.
"""

from __future__ import annotations

from sublet.packing.apart import place_apart
from sublet.packing.auto import Report, pack
from sublet.packing.bounds import Bound, lower_bound
from sublet.packing.csv_format import Lifetimes, read_csv, write_csv
from sublet.packing.files import read_problem
from sublet.packing.json_format import read_json
from sublet.packing.problem import Buffer, Companion, Packing, Precedence, Problem
from sublet.packing.region_cost import Region, slow_region
from sublet.packing.regions import RegionPacking, check_regions, place_in_regions
from sublet.packing.strategies import STRATEGIES, Strategy, strategy_named, strategy_names
from sublet.packing.validate import check_packing

__all__ = [
    "STRATEGIES",
    "Bound",
    "Buffer",
    "Companion",
    "Lifetimes",
    "Packing",
    "Precedence",
    "Problem",
    "Region",
    "RegionPacking",
    "Report",
    "Strategy",
    "check_packing",
    "check_regions",
    "lower_bound",
    "pack",
    "place_apart",
    "place_in_regions",
    "read_csv",
    "read_json",
    "read_problem",
    "slow_region",
    "strategy_named",
    "strategy_names",
    "write_csv",
]
