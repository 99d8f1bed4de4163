"""Kernels on PyTorch do not allocate behind the planner's back, unless they say so.

The examples of every command are scaled up until they have about a megabyte. A kernel may then allocate the few
bytes of a number that it wraps as a tensor, and nothing that grows. Examples that cannot be scaled, because their
attributes name extents, stand in LARGE.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from sublet.base.errors import SpecError
from sublet.integrations.torch.kernels.backend import KERNELS, TorchBackend
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import Command
from tests.nn.examples import EXAMPLES, Case, Example, case_of, spec_of_text
from tests.nn.test_registry import computed

torch = pytest.importorskip("torch")

LIMIT = 1 << 17
"""Elements of the largest input or output of a scaled example."""
SMALL = 4096
"""Bytes that do not count."""
LARGE: dict[str, tuple[Example, ...]] = {
    "broadcast_to": (Example(("f32[1,512]",), {"shape": (256, 512)}),),
    "embedding_gradient": (Example(("f32[2048,64]", "i64[2048] 0:1000"), {"rows": 1000}),),
    "fill": (Example((), {"shape": (LIMIT,), "dtype": "f32", "value": 1.0}),),
    "index_select_gradient": (Example(("f32[64,256,8]", "i64[256] 0:300"), {"axis": 1, "extent": 300}),),
    "iota": (Example((), {"count": LIMIT}),),
    "one_hot": (Example(("i32[256] 0:512",), {"depth": 512}),),
    "random_normal": (Example(("i64[] 0:9",), {"shape": (LIMIT,), "dtype": "bf16"}),),
    "random_uniform": (Example(("i64[] 0:9",), {"shape": (LIMIT,), "dtype": "f64"}),),
    "reshape": (Example(("f32[256,512]",), {"shape": (512, 256)}),),
    "slice": (Example(("f32[256,512]",), {"starts": (1, 2), "ends": (251, 500), "steps": (2, 3)}),),
    "split": (Example(("f32[256,512]",), {"axis": 1, "sizes": (200, 312)}),),
    "sum_to": (Example(("f32[64,32,64]",), {"shape": (32, 1)}),),
    "upsample": (
        Example(("f32[2,16,32,32]",), {"size": (64, 64)}),
        Example(("f32[2,16,32,32]",), {"size": (64, 60), "mode": "bilinear"}),
    ),
    "upsample_gradient": (
        Example(("f32[2,16,64,64]",), {"size": (32, 32)}),
        Example(("f32[2,16,60,64]",), {"size": (32, 32), "mode": "bilinear"}),
    ),
}
"""Larger examples of commands whose examples cannot be scaled."""


def _times(text: str, factor: int) -> str:
    """The input with every extent that is not 1 made larger."""
    if text == "_":
        return text
    extents = (extent if extent == 1 else extent * factor for extent in spec_of_text(text).shape)
    return re.sub(r"\[[\d,]*\]", f"[{','.join(map(str, extents))}]", text)


def _elements(record: Command, example: Example) -> int:
    """Of the largest input or output. Raises SpecError where the command does not take such inputs."""
    specs = [None if text == "_" else spec_of_text(text) for text in example.inputs]
    made = record.infer(specs, record.complete_attributes(example.attrs))
    return max(spec.size for spec in (*specs, *made) if spec is not None)


def scaled(record: Command, example: Example) -> Example | None:
    """The example with inputs and outputs of up to LIMIT elements; None where its attributes name extents."""
    found = None
    for factor in (2**power for power in range(1, 18)):
        larger = Example(tuple(_times(text, factor) for text in example.inputs), example.attrs)
        try:
            if _elements(record, larger) > LIMIT:
                break
        except SpecError:
            break
        found = larger
    return found


def large(name: str) -> list[Example]:
    """Uses of a command with operands that count."""
    larger = (scaled(COMMANDS[name], example) for example in EXAMPLES[name])
    return [*filter(None, larger), *LARGE.get(name, ())]


def allocated(case: Case) -> list[int] | None:
    """The sizes of what PyTorch allocates during the second call of the kernel. The first may set something up.

    None where the kernel does not take this node.
    """
    calls = []

    class Watched(TorchBackend):
        def kernel(self, node: Any, constants: Any) -> Any:
            found = super().kernel(node, constants)
            return found and _Watch(found)

    class _Watch:
        def __init__(self, kernel: Any) -> None:
            self.kernel, self.scratch = kernel, kernel.scratch

        def bind(self, *operands: Any) -> Any:
            calls.append(self.kernel.bind(*operands))
            return calls[-1]

    computed(case.graph, case.arrays, Watched())
    if not calls:
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        calls[-1]()
    events = profiler.profiler.kineto_results.events()
    return [event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() > 0]


@pytest.mark.parametrize("name", [name for name, fast in KERNELS.items() if not fast.allocates])
def test_kernels_allocate_nothing_that_grows(name: str) -> None:
    seen = [(example, allocated(case_of(COMMANDS[name], example))) for example in large(name)]
    if all(sizes is None for _, sizes in seen):
        pytest.skip("the kernel takes none of these nodes")
    for example, sizes in seen:
        found = [size for size in sizes or () if size > SMALL]
        assert not found, f"nn.{name} allocates {found} bytes for {example}"


def test_the_ruler_sees_an_allocation() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        torch.empty(100_000)
    events = profiler.profiler.kineto_results.events()
    assert any(event.name() == "[memory]" and event.nbytes() >= 400_000 for event in events)
