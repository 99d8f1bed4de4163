"""What no order of a network's operators, as `torch.export` gives them, goes below in an inference.

    python -m benchmarks.torch.least NETWORK

Whichever of them are computed again. Prints JSON: the bytes that one operator needs at least (`floor`), and those of
the results. What kernels and libraries allocate comes on top. Operators in pieces, or several as one, may need less.
"""

from __future__ import annotations

import json
import sys
import warnings

import torch

import sublet
from benchmarks.torch.networks import NETWORKS
from sublet.passes.recompute.memory_bound import memory_bound_of


def least(name: str) -> dict[str, int]:
    """Bytes of a network's inference. Its results are the caller's, so that the floor does not count them."""
    network = NETWORKS[name]
    with torch.no_grad():
        model = sublet.from_torch(network.make().eval(), network.inputs())
    found = memory_bound_of(model.graph, io_bound=True, weights_bound=True)
    return {"floor": found.nbytes, "results": sum(value.nbytes for value in dict.fromkeys(model.graph.outputs))}


def main() -> None:
    warnings.simplefilter("ignore")
    print(json.dumps(least(sys.argv[1])))


if __name__ == "__main__":
    main()
