"""Conversion of operator calls: views become layouts, all other operators become nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from sublet.base.arrays import torch_name
from sublet.base.errors import ModelError
from sublet.integrations.torch.dialect import (
    COLLECTIVES,
    COPY_FIRST_ARGUMENT,
    EMBEDDING_SUM,
    LINEAR_LOSS,
    LOGITS_GRADIENT,
    PREFIX,
    WAIT,
    StridedLayout,
    why_not_plannable,
)
from sublet.integrations.torch.reader.conversion import ConversionLevel
from sublet.integrations.torch.reader.lower_to_nn import lower_to_nn
from sublet.integrations.torch.reader.traced_tensor import TracedTensor, fixed_number, torch

# Functional collectives in traced programs: a node starts the collective, a later node waits for the result.

BASE_COLLECTIVES = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast")
PLANNED_COLLECTIVES = (*BASE_COLLECTIVES, *(f"{name}_coalesced" for name in BASE_COLLECTIVES[:3]), "wait_tensor")
"""Collectives with a plan: each computes new tensors from tensors."""


def add_collective(
    level: ConversionLevel, target: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], like: Any, source: str
) -> Any:
    """Add a collective, or a wait for a collective, and return the results.

    Raises ModelError for an unknown collective, and for a collective outside of the CPU.
    """
    full = str(target)
    if full.split(".")[1] not in PLANNED_COLLECTIVES:
        raise ModelError(
            f"{source}: the collective {target} cannot be planned; there are {', '.join(PLANNED_COLLECTIVES)}"
        )
    if level.conversion.device:
        raise ModelError(f"{source}: {target} on {level.conversion.device}: collectives are planned on the CPU alone")
    begun = level.conversion.pending_reads
    if full == WAIT:
        (started,) = args
        return level.add_call(full, name, (started, *begun.get(started.value, ())), {}, [like], source)[0]
    results = level.add_call(full, name, args, kwargs, list(like) if isinstance(like, list | tuple) else [like], source)
    reads = () if full in COPY_FIRST_ARGUMENT else tuple(_nested_tensors(args))
    begun.update({each.value: reads for each in results if each is not None})
    return results if isinstance(like, list | tuple) else results[0]


def _nested_tensors(args: Any) -> list[TracedTensor]:
    """Return all tensors in nested lists of arguments."""
    if isinstance(args, list | tuple):
        return [each for inner in args for each in _nested_tensors(inner)]
    return [args] if isinstance(args, TracedTensor) else []


# Fusion of an operator with the only reader of the result, see `integrations.torch.dialect.FUSED_PREFIX`: the gradients
# of nll_loss and log_softmax, and the gradient of an embedding with the sum of two gradients of the table.

LOSS = "aten.nll_loss_backward.default"
SOFTMAX = "aten._log_softmax_backward_data.default"
EMBEDDING = "aten.embedding_dense_backward.default"
ADD = "aten.add.Tensor"

ROWS_LOSS = "sublet.linear_cross_entropy.default"
"""The operator of `compile/loss_rows.py`."""


def is_fused_with_reader(node: Any) -> bool:
    """True if the only reader of a node computes both operators in one."""
    if not isinstance(node, torch().fx.Node) or str(node.target) not in (LOSS, EMBEDDING) or len(node.users) != 1:
        return False
    (reader,) = node.users
    if list(reader.args).count(node) != 1 or reader.kwargs:
        return False
    return _is_logits_gradient(node, reader) if str(node.target) == LOSS else _is_embedding_sum(node, reader)


def _is_logits_gradient(node: Any, reader: Any) -> bool:
    """True for a loss gradient [N, C] read by the gradient of a log_softmax over the classes, all of one type."""
    if str(reader.target) != SOFTMAX or reader.args[0] is not node:
        return False
    _, y, axis, dtype = reader.args
    gradient, y = node.meta["val"], y.meta["val"]
    return gradient.dim() == 2 and axis in (1, -1) and gradient.dtype == y.dtype == dtype


def _is_embedding_sum(node: Any, reader: Any) -> bool:
    """True for the gradient of an embedding added to a gradient of equal type and shape, in f32 or f64.

    Of two gradients of embeddings added to each other, the second is fused. In bf16 and f16, PyTorch rounds the sums of
    rows in another way than `EMBEDDING_SUM`.
    """
    if str(reader.target) != ADD or node.args[4]:
        return False
    one, other = reader.args
    base = one if other is node else other
    is_table = isinstance(base, torch().fx.Node) and isinstance(base.meta.get("val"), torch().Tensor)
    if not is_table or (other is not node and str(base.target) == EMBEDDING):
        return False
    sizes, dtypes = zip(*((each.meta["val"].shape, each.meta["val"].dtype) for each in (node, base)), strict=True)
    is_fixed = all(isinstance(extent, int) for size in sizes for extent in size)
    return is_fixed and sizes[0] == sizes[1] and dtypes[0] == dtypes[1] in (torch().float32, torch().float64)


def add_fused(level: ConversionLevel, node: Any, fused: str, other: Any, args: Sequence[Any], source: str) -> Any:
    """Add the fused operator of a node and an operand, and return the result.

    Args:
        level: the level of the conversion.
        node: the node.
        fused: the name of the operand's operator.
        other: the other operand of the node, converted.
        args: the arguments of the operand's operator, converted.
        source: source line of the node.
    """
    if fused == LOSS:  # only the extents of the loss gradient's second argument matter
        dy, _, *rest = args
        name, given = LOGITS_GRADIENT, (dy, other, *rest)
    else:
        dy, indices, _, padding, _ = args
        name, given = EMBEDDING_SUM, (other, dy, indices, padding)
    (result,) = level.add_call(name, node.name, given, {}, [node.meta["val"]], source)
    return result


# Results with extents traced differently by PyTorch than computed by PyTorch's kernels.
#
# All operators with strided results in PyTorch's own test samples (`op_db`), and their gradients, were run beside the
# trace. Only the operators listed here differ.

PROBED_OPERATORS = ("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
"""Operators probed for extents.

The bag offsets kept for the gradient have the extents needed by the kernel. Types, strides and arguments decide the
extents, never the content of the tensors.
"""

MAX_PROBE_ELEMENTS = 1 << 26
"""Maximum elements in a probe: a file may declare any number."""


def kernel_results(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], traced: Sequence[Any], source: str, device: str = ""
) -> Sequence[Any]:
    """Return an operator's results with the extents of the kernel, by a run with one row of the table and zeros.

    Raises ModelError if the kernel cannot run: outside of the CPU, or with too many elements.
    """
    if str(target) not in PROBED_OPERATORS:
        return traced
    if device:
        raise ModelError(
            f"{source}: the extents of the results of {target} on {device} are not known; run it on the CPU"
        )
    table, *rest = args
    sizes = [each.layout.size for each in (*rest, *kwargs.values()) if isinstance(each, TracedTensor)]
    if sum(map(prod, (*sizes, *(each.shape for each in traced)))) > MAX_PROBE_ELEMENTS:
        raise ModelError(
            f"{source}: {target} has too many elements (limit {MAX_PROBE_ELEMENTS}) for a run that shows its extents"
        )
    by_name = {name: _zeros_like_argument(argument) for name, argument in kwargs.items()}
    try:
        computed: Sequence[Any] = target(
            _zeros_like_argument(table, rows=1), *map(_zeros_like_argument, rest), **by_name
        )
    except RuntimeError as error:
        raise ModelError(f"{source}: the extents of the results of {target} are not known: {error}") from None
    return computed


def _zeros_like_argument(argument: Any, rows: int | None = None) -> Any:
    """Return a tensor of zeros with an argument's layout and, if given, `rows` rows; a plain argument unchanged."""
    if not isinstance(argument, TracedTensor):
        return argument
    t, layout = torch(), argument.layout
    size = layout.size if rows is None else (rows, *layout.size[1:])
    return t.empty_strided(size, layout.stride, dtype=getattr(t, torch_name(argument.spec.dtype)), device="cpu").zero_()


ALIAS_OPERATORS = ("aten._unsafe_view.default", "aten.alias.default", "aten.detach.default", "aten.detach_.default")
"""Views of the first argument, some with a schema without alias, or with a write of the argument."""

QUANTIZING_PREFIXES = (
    "aten.quantize",
    "aten._empty_affine_quantized",
    "aten._empty_per_channel_affine_quantized",
    "aten._make_per_",
)
"""Operators with quantized results; the trace shows plain numbers instead."""


PRIMS = ("prims.fma.default", "prims.convert_element_type.default")
"""Operators emitted by Dynamo for the updates of torch.optim."""


def add_operator(
    level: ConversionLevel, target: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], like: Any, source: str
) -> Any:
    """Convert a call of an operator, and return a tensor or a list of tensors; `like` are the traced results.

    Raises ModelError for an operator impossible to plan.
    """
    if str(target).startswith(COLLECTIVES):
        return add_collective(level, target, name, args, kwargs, like, source)
    if str(target) == ROWS_LOSS:
        return level.add_call(LINEAR_LOSS, name, args, kwargs, like, source)
    if str(target) in PRIMS:
        target, args, kwargs = _prim_as_aten(str(target), args)
    full = _aten_name(target, source)
    if full.startswith(QUANTIZING_PREFIXES):
        raise ModelError(f"{source}: {full} gives a quantized tensor, which cannot be planned")
    schema = target._schema
    if full in ALIAS_OPERATORS or _returns_views(schema):
        return _convert_view(level, target, name, args, kwargs, source)
    if schema.is_mutable:
        raise ModelError(f"{source}: {full} writes its arguments: trace the program functionalised")
    results: list[Any] = list(like) if isinstance(like, list | tuple) else [like]
    device = level.conversion.device
    numbers = _take_out_numbers(level, target, full, args, kwargs, results, source) if device else {}
    if not all(result is None or hasattr(result, "stride") for result in results):
        raise ModelError(f"{source}: {full} gives a number that only a run knows, which nothing can be planned with")
    lowered = lower_to_nn(level, full, name, args, kwargs, source)
    if lowered is not None:
        return lowered
    computed = kernel_results(target, args, kwargs, results, source, device)
    outputs: list[Any] = [*level.add_call(full, name, args, kwargs, computed, source)]
    for position, number in numbers.items():
        outputs[position] = number
    return outputs if isinstance(like, list | tuple) else outputs[0]


def _take_out_numbers(
    level: ConversionLevel,
    target: Any,
    full: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    results: list[Any],
    source: str,
) -> dict[int, int]:
    """Remove results that are numbers, as of attention on devices, from `results`; return the numbers by position.

    Raises ModelError for an operator with a wrong schema on the device.
    """
    names = [each.name for each in target._schema.arguments]
    why = why_not_plannable(full, {**dict(zip(names, args, strict=False)), **kwargs})
    if why:
        raise ModelError(f"{source}: on {level.conversion.device}, {why}")
    kinds = (int, torch().SymInt)
    numbers = {
        i: fixed_number(each, level.conversion.extents, source) for i, each in enumerate(results) if type(each) in kinds
    }
    for position in numbers:
        results[position] = None
    return numbers


def _prim_as_aten(prim: str, args: Sequence[Any]) -> tuple[Any, Sequence[Any], dict[str, Any]]:
    """Return an ATen operator, arguments by position and arguments by name with the same result as a prim."""
    aten = torch().ops.aten
    if prim == PRIMS[1]:
        return aten._to_copy.default, args[:1], {"dtype": args[1]}
    a, b, c = args
    if isinstance(b, TracedTensor):
        return aten.addcmul.default, (c, a, b), {}
    return aten.add.Tensor, (c, a), {"alpha": b}


def _aten_name(target: Any, source: str) -> str:
    """Return the ATen name of an operator. Raises ModelError for an operator outside of ATen."""
    namespace, _, rest = str(target).partition(".")
    if namespace != PREFIX.rstrip("."):
        raise ModelError(f"{source}: {target} is no operator of ATen's, and cannot be planned")
    return f"{PREFIX}{rest}"


def _returns_views(schema: Any) -> bool:
    """True if all results are views of an argument, and no argument is written."""
    alias = [result.alias_info for result in schema.returns]
    return bool(alias) and all(info is not None and not info.is_write for info in alias)


def _convert_view(
    level: ConversionLevel, target: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], source: str
) -> Any:
    """Convert a view operator to layouts. A view with another element type becomes a copy."""
    base = args[0]
    if not isinstance(base, TracedTensor):
        raise ModelError(f"{source}: {target} is given no tensor first")
    aten = torch().ops.aten
    if target in (aten.detach_.default, aten.detach.default, aten.alias.default):
        return base
    try:
        view = target(base.meta_tensor(), *args[1:], **kwargs)
    except (RuntimeError, ValueError):  # the view is valid only for the eager strides
        base = level.with_eager_layout(base)
        view = target(base.meta_tensor(), *args[1:], **kwargs)
    if isinstance(view, list | tuple):
        return [_view_tensor(level, base, each, source) for each in view]
    if view.dtype != base.meta_tensor().dtype:
        return level.add_call(f"{PREFIX}view_copy.dtype", name, (base, view.dtype), {}, [view], source)[0]
    return _view_tensor(level, base, view, source)


def _view_tensor(level: ConversionLevel, base: TracedTensor, seen: Any, source: str) -> TracedTensor:
    """Return a view as a tensor.

    A contiguous piece of a computed value gets a value: the planner decides on a copy, so the rest of the value can be
    freed.
    """
    part = TracedTensor(base.value, StridedLayout(tuple(seen.shape), tuple(seen.stride()), seen.storage_offset()))
    is_piece = part.layout.is_contiguous and 0 < part.layout.elements < base.spec.size
    if not is_piece or base.value in level.conversion.weights:
        return part
    piece_value = level.as_row_major(part, source)
    level.conversion.piece_sources[piece_value.value] = part
    return piece_value
