"""Offline dynamic storage allocation (DSA): `pack` maps a Problem to a Packing.

The package knows bytes and time, but no tensors.

    problem                     data types: Buffer, Precedence, Companion, Problem, Packing
    files, csv_format           readers and writers of files
    rigid_groups, normalize     reduction of offset constraints, pins and permitted overlaps to plain interference
    conflicts                   the interference graph
    greedy                      strategies that fill holes in a fixed order of the buffers
    allocation_graph            which buffer can take over the bytes of which, and the graph of such successions
    strategies                  strategies that fill an allocation graph; all strategies by name
    search                      exact search, limited by steps or time
    bounds                      lower bounds on the arena size
    validate                    checker of packings
    regions, region_assignment  assignment of buffers to several memory regions, and to one reserved for transfers
    portfolio                   the best packing of all strategies; improvement by reinsertion

`portfolio.pack` runs the strategies and the search, and returns the best packing, checked.
"""

from __future__ import annotations

from sublet.packing.bounds import LowerBound, lower_bound
from sublet.packing.csv_format import Lifetimes, read_csv, write_csv
from sublet.packing.files import read_json, read_problem
from sublet.packing.portfolio import PackingReport, pack
from sublet.packing.problem import Buffer, Companion, Packing, Precedence, Problem
from sublet.packing.region_assignment import MemoryRegion, slow_region
from sublet.packing.regions import RegionPacking, check_regions, place_in_dedicated_region, place_in_regions
from sublet.packing.strategies import STRATEGIES, Strategy, strategy_named, strategy_names
from sublet.packing.validate import check_packing

__all__ = [
    "STRATEGIES",
    "Buffer",
    "Companion",
    "Lifetimes",
    "LowerBound",
    "MemoryRegion",
    "Packing",
    "PackingReport",
    "Precedence",
    "Problem",
    "RegionPacking",
    "Strategy",
    "check_packing",
    "check_regions",
    "lower_bound",
    "pack",
    "place_in_dedicated_region",
    "place_in_regions",
    "read_csv",
    "read_json",
    "read_problem",
    "slow_region",
    "strategy_named",
    "strategy_names",
    "write_csv",
]
