"""Measures the scratch memory of kernels, in Paddle's own interpreter: each operator of a program runs by itself.

    python scratch.py PROGRAM        prints JSON: [block, operator, bytes] of each that has any

What an operator reads is there before it runs, what it writes stays. What Paddle's counter has seen beyond that at its
highest is scratch: a column matrix for a convolution, the parts of a sum. Operators that run blocks, and those that
handle something else than tensors of known size, are left out. Paddle 3 counts so; 2.6 cannot reset its counter.
"""

import json
import sys

import trials
from trials import Run
from uses import content, framework, proto, use_of

EMPTY = "@EMPTY@"
NONE = ("view_slice", "empty", "share_data", "depend")
"""They allocate what they write, or nothing at all."""


def key_of(use):
    """What decides how much scratch a use needs; in place it may be more."""
    names = [name for _, _, name in use.inputs + use.outputs]
    return use.key(), tuple(use.types[name] for name in names), tuple(names.index(name) for name in names)


def complete(op):
    """An operator without the names that stand for nothing."""
    whole = proto.OpDesc()
    whole.CopyFrom(op)
    for side in (whole.inputs, whole.outputs):
        for slot in side:
            there = [name for name in slot.arguments if name != EMPTY]
            del slot.arguments[:]
            slot.arguments.extend(there)
    return whole


def scratch_of(use):
    core = framework.core
    contents = {name: content(name, *use.types[name], seed=k) for k, name in enumerate(use.read)}
    run = Run(use, contents)
    core.host_memory_stat_reset_peak_value("Allocated", 0)
    run.run()
    return max(
        0, core.host_memory_stat_peak_value("Allocated", 0) - core.host_memory_stat_current_value("Allocated", 0)
    )


def main():
    program = proto.ProgramDesc()
    with open(sys.argv[1], "rb") as file:
        program.ParseFromString(file.read())
    known, found = {}, []
    for block in program.blocks:
        for index, op in enumerate(block.ops):
            use = None if op.type in NONE else use_of(program, block, complete(op))
            if use is None:
                continue
            key = key_of(use)
            if key not in known:
                try:
                    known[key] = scratch_of(use)
                except Exception as error:
                    print(op.type, " ".join(str(error).split())[-200:], file=sys.stderr)
                    known[key] = 0
            if known[key]:
                found.append((block.idx, index, known[key]))
    print(json.dumps(found))


assert trials.paddle.__version__ >= "3", "this needs paddlepaddle 3"
main()
