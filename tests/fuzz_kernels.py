"""Kernels under the facts they may be run under, and gradients beside PyTorch's, for as long as you like.

python -m tests.fuzz_kernels --kind facts --seconds 600 --seed 1        # variations of the examples of all commands
python -m tests.fuzz_kernels --kind operators --seconds 600             # ONNX's own tests of operators
python -m tests.fuzz_kernels --kind gradients --seconds 600 --seed 1    # programs of all commands with a gradient
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable

from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.runtime.backends.reference import ReferenceBackend
from tests.nn.facts import generated
from tests.nn.gradient_programs import check_program
from tests.ops.facts import case_named, check_case, names
from tests.support.kernel_layouts import ALIGNMENTS

Seen = Counter[str]


def one_variation(seed: int, seen: Seen) -> None:
    generated(seed, ReferenceBackend() if seed % 4 == 0 else TorchBackend(), seen)


def one_operator(seed: int, seen: Seen) -> None:
    rng = random.Random(seed)
    case, backend = case_named(rng.choice(names())), rng.choice(("onnxruntime", "onnxruntime", "numpy", "reference"))
    if case is not None:
        check_case(case, backend, ALIGNMENTS, seen)
        seen["cases"] += 1


KINDS: dict[str, Callable[[int, Seen], None]] = {
    "facts": one_variation,
    "operators": one_operator,
    "gradients": check_program,
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--kind", choices=KINDS, default="facts")
    chosen = arguments.parse_args()
    seen, seed, end = Seen(), chosen.seed, time.monotonic() + chosen.seconds
    try:
        while time.monotonic() < end:
            KINDS[chosen.kind](seed, seen)
            seed += 1
    except BaseException:
        print(f"seed {seed}")
        raise
    finally:
        print(", ".join(f"{count} {what}" for what, count in sorted(seen.items()) if not what.startswith("nn.")))


if __name__ == "__main__":
    main()
