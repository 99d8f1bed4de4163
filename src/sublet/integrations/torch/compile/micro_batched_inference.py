"""Inference in micro-batches: a few samples at a time, all in the same arena.

    args (8 samples) -> [part of 1] -> arena for one sample -> rows of the results
                        [part of 1] -> the same arena       -> the next rows

Only graphs with large tensors and sample-wise operators run in micro-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sublet.base.errors import ModelError
from sublet.integrations.torch.compile.fx_queries import tensor_bytes
from sublet.integrations.torch.compile.joint_graph import PassValue
from sublet.integrations.torch.reader.batch_axis import BatchAxis, OptionalBatchAxis
from sublet.integrations.torch.reader.fx_conversion import graph_results, placeholders
from sublet.integrations.torch.reader.smaller_batch import SmallerBatch, with_extents, with_smaller_batch
from sublet.integrations.torch.reader.traced_tensor import Extents, is_dense, torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import GraphModule, Node

LARGE_TENSOR_BYTES = 1 << 21
"""Bytes of a tensor. Inferences with larger tensors run in micro-batches."""


@dataclass(frozen=True)
class MicroBatches:
    """The split of an inference into micro-batches.

    count             number of micro-batches
    smaller           the graph of a single micro-batch
    like_results      tensors without bytes, with the layouts of the results for all samples; None for other results
    argument_results  argument positions by result position, for results equal to arguments
    """

    count: int
    smaller: SmallerBatch
    like_results: tuple[Tensor | None, ...]
    argument_results: Mapping[int, int]

    def run_all(
        self, run: Callable[[Sequence[PassValue], Mapping[int, Tensor]], Sequence[PassValue]], args: Sequence[PassValue]
    ) -> list[PassValue]:
        """Return the results for all samples, computed by one call of `run` for each micro-batch.

        `run` receives the arguments of a micro-batch, and places for results by position.
        """
        given, rows_of = self.smaller.argument_axes, self.smaller.result_axes
        places = {
            i: self._new_result(i)
            for i, rows in enumerate(rows_of)
            if rows is not None and i not in self.argument_results
        }
        results: Sequence[PassValue] = ()
        for number in range(self.count):
            part = [self._slice_of_part(each, rows, number) for each, rows in zip(args, given, strict=True)]
            results = run(part, {i: self._slice_of_part(place, rows_of[i], number) for i, place in places.items()})
        wholes = {**places, **{i: args[position] for i, position in self.argument_results.items()}}
        return [wholes.get(i, each) for i, each in enumerate(results)]

    def _new_result(self, position: int) -> Tensor:
        """Return a new tensor for a result of all samples."""
        fake = self.like_results[position]
        assert fake is not None
        whole: Tensor = torch().empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
        return whole

    def _slice_of_part(self, tensor: Tensor, rows: OptionalBatchAxis, number: int) -> Tensor:
        """Return the rows of micro-batch `number`; the whole tensor if equal for all samples (`rows` is None)."""
        if rows is None:
            return tensor
        extent = tensor.shape[rows.axis] // self.count
        return tensor.narrow(rows.axis, number * extent, extent)


def split_in_micro_batches(
    module: GraphModule, static: Collection[int], at_once: int | None, extents: Extents
) -> MicroBatches | None:
    """Return the split of an inference graph into micro-batches; None to compute all samples at once.

    The samples lie on the first axis of the arguments not in `static`.

    Args:
        module: FX graph module of the inference.
        static: positions of parameters and buffers.
        at_once: samples of a micro-batch, a divisor of all samples; None to choose the most samples with small tensors.
        extents: extents of the graph's symbols.

    Raises:
        ModelError: if the graph does not compute sample by sample.
    """
    module = with_extents(module, extents) if extents else module
    nodes = placeholders(module)
    fakes = [node.meta["val"] for node in nodes]
    given = [i for i, fake in enumerate(fakes) if i not in static and hasattr(fake, "stride") and fake.dim()]
    leading = Counter(fakes[i].shape[0] for i in given if isinstance(fakes[i].shape[0], int))
    error: ModelError | None = None
    for samples, _ in leading.most_common():
        part = _part_samples(module, nodes, samples) if at_once is None else at_once
        if samples < 2 or part >= samples or samples % part:
            continue
        states = [BatchAxis(0) if i in given and fakes[i].shape[0] == samples else None for i in range(len(fakes))]
        try:
            fewer = with_smaller_batch(module, states, samples, part)
            return MicroBatches(
                samples // part, fewer, _traced_results(module, fewer), _argument_results(module, nodes)
            )
        except ModelError as refused:
            error = error or refused
    if error is not None:
        raise error
    return None


def _part_samples(module: GraphModule, given: Collection[Node], samples: int) -> int:
    """Return the largest divisor of `samples` with all inner tensors small enough; 1 if no divisor fits.

    A tensor is small with at most `LARGE_TENSOR_BYTES` bytes.
    """
    outside = {*given, *(node for node in graph_results(module) if isinstance(node, torch().fx.Node))}
    largest = max((tensor_bytes(node) for node in module.graph.nodes if node not in outside), default=0)
    fitting = (
        part for part in range(samples, 0, -1) if samples % part == 0 and largest * part <= LARGE_TENSOR_BYTES * samples
    )
    return next(fitting, 1)


def _traced_results(module: GraphModule, fewer: SmallerBatch) -> tuple[Tensor | None, ...]:
    """Return the traced results. Raises ModelError for a batched result with gaps between elements."""
    fakes = []
    for node, rows in zip(graph_results(module), fewer.result_axes, strict=True):
        fake: Tensor | None = node.meta["val"] if isinstance(node, torch().fx.Node) else None
        if rows is not None and not is_dense(fake):
            raise ModelError(f"{node.name}: a result with gaps")
        fakes.append(fake)
    return tuple(fakes)


def _argument_results(module: GraphModule, given: Sequence[Node]) -> dict[int, int]:
    """Return the argument position of each result equal to an argument, by result position."""
    return {i: given.index(node) for i, node in enumerate(graph_results(module)) if node in given}
