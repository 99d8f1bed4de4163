"""Attention against PyTorch's own function and derivatives."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ops.nn import COMMANDS
from sublet.runtime.backends.reference import ReferenceBackend
from sublet.runtime.kernel import Backend
from tests.nn.against import agrees, refused
from tests.nn.examples import Example, case_of
from tests.nn.test_registry import computed

torch = pytest.importorskip("torch")


def _shapes(batch: int, heads: int, queries: int, keys: int, width: int, values: int) -> tuple[str, ...]:
    first = f"f64[{batch},{heads}"
    return f"{first},{queries},{width}]", f"{first},{keys},{width}]", f"{first},{keys},{values}]"


ROWS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (_shapes(2, 4, 64, 64, 16, 16), {}),
    (_shapes(2, 4, 64, 64, 16, 16), {"causal": 1, "scale": 0.3}),
    (_shapes(2, 3, 1, 40, 16, 8), {}),
    ((*_shapes(2, 3, 30, 20, 16, 8), "f64[2,1,1,20]"), {}),
    ((*_shapes(2, 3, 30, 30, 16, 8), "bool[30,30]"), {}),
    # Sequences that are cut, the last piece shorter; with more keys than queries and fewer.
    (_shapes(1, 2, 300, 300, 8, 8), {"causal": 1}),
    (_shapes(1, 2, 300, 350, 8, 8), {"causal": 1}),
    (_shapes(1, 2, 300, 100, 8, 4), {"causal": 1}),
    ((*_shapes(1, 2, 300, 70, 8, 8), "f64[2,300,70]"), {"causal": 1}),
]


def _scores(q: Any, k: Any, mask: Any, attrs: dict[str, Any]) -> Any:
    scores = q @ k.mT * attrs.get("scale", q.shape[-1] ** -0.5)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if attrs.get("causal"):
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -torch.inf)
    return scores


def _in_layout(layout: str, inputs: tuple[str, ...], attrs: dict[str, Any], function: Any) -> Any:
    """Return inputs, attributes and function of heads first, for tensors in a layout."""
    if layout == "bhtd":
        return inputs, attrs, function

    def swapped(*given: Any) -> Any:
        found = function(*(x.transpose(1, 2) for x in given[:3]), *given[3:])
        return (found[0].transpose(1, 2), *found[1:]) if isinstance(found, tuple) else found.transpose(1, 2)

    specs = [re.sub(r",(\d+),(\d+)", r",\2,\1", spec, count=1) for spec in inputs[:3]]
    return (*specs, *inputs[3:]), {**attrs, "layout": layout}, swapped


LAYOUTS = pytest.mark.parametrize("layout", ["bhtd", "bthd"])


@LAYOUTS
@pytest.mark.parametrize("row", ROWS, ids=map(str, range(len(ROWS))))
def test_is_pytorchs(row: Any, layout: str) -> None:
    inputs, attrs = row

    def function(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        causal, scale = bool(attrs.get("causal")), attrs.get("scale")
        if causal and mask is not None:
            mask = mask.masked_fill(torch.ones(q.shape[2], k.shape[2]).tril() == 0, -torch.inf)
            causal = False
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale)

    agrees("attention", *_in_layout(layout, inputs, attrs, function))


@LAYOUTS
@pytest.mark.parametrize("row", [ROWS[1], ROWS[3], ROWS[5]], ids=["causal", "mask", "cut"])
def test_the_sums_of_exponentials_and_their_gradient(row: Any, layout: str) -> None:
    inputs, attrs = row

    def function(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        scores = _scores(q, k, mask, attrs)
        return scores.softmax(-1) @ v, scores.logsumexp(-1)

    agrees("attention", *_in_layout(layout, inputs, attrs, function))


@pytest.mark.parametrize("backend", [TorchBackend(), ReferenceBackend()], ids=["torch", "reference"])
@pytest.mark.parametrize("numbers", [False, True])
def test_a_query_that_may_attend_to_nothing_gives_zero(backend: Backend, numbers: bool) -> None:
    mask = "f32[2,3] 0:1" if numbers else "bool[2,3]"
    inputs = ("f32[1,2,2,4]", "f32[1,2,3,4]", "f32[1,2,3,4]", mask)
    for name, given in (("attention", inputs), ("attention_gradient", ("f32[1,2,2,4]", *inputs))):
        case = case_of(COMMANDS[name], Example(given))
        array = case.arrays[f"x{len(given) - 1}"]
        array[0], array[1] = (-np.inf, 0) if numbers else (False, True)
        places = computed(case.graph, case.arrays, backend)
        first, second = (places[v.name] for v in case.graph.outputs[:2])
        assert np.array_equal(first[:, :, 0], np.zeros((1, 2, 4)))
        assert np.all(np.isfinite(first))
        assert np.all(np.isneginf(second[:, :, 0])) if name == "attention" else np.all(np.isfinite(second))


def test_scratch_does_not_grow_with_the_square_of_the_sequence() -> None:
    sizes = []
    for length in (1024, 4096):
        case = case_of(COMMANDS["attention"], Example((f"f32[1,1,{length},8]",) * 3))
        kernel = TorchBackend().kernel(case.graph.nodes[0], {})
        assert kernel is not None
        sizes.append(kernel.scratch)
    assert sizes[1] < 5 * sizes[0]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (["f32[2,3,4]"] * 3, r"q f32\[2,3,4\].* must have 4 axes"),
        (["f32[1,2,3,4]", "f32[1,3,3,4]", "f32[1,3,3,4]"], "must agree in batch and heads"),
        (["f32[1,2,3,4]", "f32[1,2,3,5]", "f32[1,2,3,4]"], "q and k must have the same width"),
        (["f32[1,2,3,4]", "f32[1,2,5,4]", "f32[1,2,3,4]"], "k and v the same number of positions"),
        (["f32[1,2,3,4]"] * 3 + ["f32[4,3]"], r"the mask f32\[4,3\]|cannot be broadcast"),
        (["f32[1,2,3,4]"] * 3 + ["i64[3,3]"], r"the mask is i64\[3,3\], expected one of the types f32, bool"),
        (["f32[1,2,3,4]", "f64[1,2,3,4]", "f32[1,2,3,4]"], "types must be equal"),
    ],
)
def test_refusals(shapes: list[str], message: str) -> None:
    refused("attention", shapes, {}, message)


@pytest.mark.parametrize(
    ("layout", "shapes", "message"),
    [
        ("btdh", ["f32[1,2,3,4]"] * 3, "layout = 'btdh' must be one of bhtd, bthd"),
        ("bthd", ["f32[2,3,4]"] * 3, r"must have 4 axes: \[batch, positions, heads, width\]"),
        ("bthd", ["f32[1,2,3,4]", "f32[1,2,2,4]", "f32[1,2,2,4]"], "must agree in batch and heads, their axes 0 and 2"),
        ("bthd", ["f32[1,2,3,4]", "f32[1,5,3,4]", "f32[1,2,3,4]"], r"the same number of positions \(axis 1\)"),
    ],
)
def test_refusals_of_layouts(layout: str, shapes: list[str], message: str) -> None:
    refused("attention", shapes, {"layout": layout}, message)
