"""Memory of one model in a fresh process, by the kernel's own count of resident pages.

    python -m benchmarks.run_memory sublet|onnxruntime MODEL FEEDS.npz THREADS [NAME=EXTENT ...]

Prints JSON, all in bytes: "loaded", what the model takes before it runs beyond the weights in its file
(sessions, rearranged weights), and "run", how far the first three runs rise above that (arenas, workspaces).
Pages of weights are touched before, and free heap is given back, so that both start alike.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from sublet.api import compiling
from sublet.integrations.onnx.kernels.backend import OnnxRuntime
from sublet.runtime import backends

RUNS = 3


def status(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) << 10


def settle(field: str = "VmRSS") -> int:
    """Give free heap back; the resident bytes, or those of another field."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return status(field)


def load_sublet(path: str, dims: dict[str, int], threads: int) -> tuple[Callable[[dict], object], int]:
    """Everything but the first run; and the bytes of the weights."""
    executable = compiling.compile(path, dims=dims)
    contents = [executable.bytes_of(value) for value in executable.graph.weights if value.plannable]
    for raw in contents:
        raw[::4096].max(initial=0)
    executable.bind("arena", mmap.mmap(-1, max(1, executable.arena_bytes)))  # pages nobody has touched
    executable.prepare()
    return executable.views, sum(raw.nbytes for raw in contents)


def load_onnxruntime(path: str, dims: dict[str, int], threads: int) -> tuple[Callable[[dict], object], int]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options)
    return lambda feeds: session.run(None, feeds), 0


def main() -> None:
    side, path, feeds_path, threads, *bindings = sys.argv[1:]
    feeds = dict(np.load(feeds_path))
    dims = {name: int(extent) for name, _, extent in (binding.rpartition("=") for binding in bindings)}
    backends.backend_factories()["onnxruntime"] = lambda model: OnnxRuntime(model.opsets, int(threads))
    onnxruntime.InferenceSession(identity().SerializeToString(), providers=["CPUExecutionProvider"])
    compiling.compile(identity())(x=np.zeros(1, np.float32))
    before = settle()
    load = load_sublet if side == "sublet" else load_onnxruntime
    run, weights = load(path, dims, int(threads))
    loaded = settle()
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(RUNS):
        run(feeds)
    print(json.dumps({"loaded": loaded - before, "weights": weights, "run": status("VmHWM") - loaded}))


def identity() -> onnx.ModelProto:
    """A model of nothing, so that the libraries themselves are in memory before anything is counted."""
    info = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [info("x", 1, (1,))], [info("y", 1, (1,))])
    opsets = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


if __name__ == "__main__":
    main()
