"""A backend that counts what its kernels compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sublet.ir.graph import Node
from sublet.runtime.backends.reference import ReferenceBackend
from sublet.runtime.kernel import Call, Kernel


class Counted:
    """A backend that counts what its kernels compute."""

    name = "counted"

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()

    def kernel(self, node: Node, constants: Mapping[Any, Any]) -> Kernel | None:
        kernel = ReferenceBackend().kernel(node, constants)
        return kernel and CountedKernel(kernel, node.op, self.runs)

    def since(self) -> Counter[str]:
        found, self.runs = self.runs.copy(), self.runs
        self.runs.clear()
        return found


class CountedKernel:
    scratch = 0
    keeps = True

    def __init__(self, kernel: Kernel, op: str, runs: Counter[str]) -> None:
        self.kernel, self.op, self.runs = kernel, op, runs

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        call = self.kernel.bind(inputs, outputs, scratch)

        def run() -> None:
            self.runs[self.op] += 1
            call()

        return run
