"""Runs in Paddle's Python: where every planned variable lies after each operator that writes it.

    python addresses.py FOLDER      reads program.pb, startup.pb, feeds.npz, wanted.json; writes seen.json

The program has a `py_func` after each such operator, given the arena and what was written. `wanted.json` has the
offsets by the number of the `py_func`; in `seen.json` are how many were looked at, and those that were elsewhere.
"""

import json
import os
import sys

os.environ.update(FLAGS_enable_pir_api="0", FLAGS_new_executor_sequential_run="1")

import numpy as np
import paddle

paddle.enable_static()
folder = sys.argv[1]


def path(name):
    return os.path.join(folder, name)


def parsed(name):
    with open(path(name), "rb") as file:
        return paddle.base.framework.Program.parse_from_string(file.read())


def looking(wanted):
    def look(arena, *tensors):
        for tensor, (name, offset) in zip(tensors, wanted, strict=True):
            seen.append(name)
            if tensor._ptr() - arena._ptr() != offset:
                elsewhere.append([name, offset, tensor._ptr() - arena._ptr()])
        return ()

    return look


seen, elsewhere = [], []
with open(path("wanted.json")) as file:
    for number, wanted in enumerate(json.load(file)):
        given = paddle.base.core._append_python_callable_object_and_return_id(looking(wanted))
        assert given == number
executor, arrays = paddle.static.Executor(paddle.CPUPlace()), np.load(path("feeds.npz"))
executor.run(parsed("startup.pb"))
program = parsed("program.pb")
for run in range(2):
    feed = {key.rpartition(".")[0]: arrays[key] for key in arrays.files if key.endswith(f".{run}")}
    executor.run(program, feed=feed)
with open(path("seen.json"), "w") as file:
    json.dump({"looks": len(seen), "names": sorted(set(seen)), "elsewhere": elsewhere}, file)
os._exit(0)  # Paddle lets go of Python's functions too late
