"""LSTM and GRU against PyTorch's own functions and derivatives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.nn.against import agrees, refused

torch = pytest.importorskip("torch")


def _inputs(time: int, batch: int, width: int, hidden: int, gates: int, states: int) -> tuple[str, ...]:
    state, rows = f"f64[{batch},{hidden}] -1:1", gates * hidden
    weights = f"f64[{rows},{width}] -0.3:0.3", f"f64[{rows},{hidden}] -0.3:0.3"
    return (f"f64[{time},{batch},{width}]", *[state] * states, *weights)


def _zero_where_missing(bias: Any, w: Any) -> Any:
    return torch.zeros(w.shape[0], dtype=w.dtype) if bias is None else bias


def _lstm(x: Any, h: Any, c: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    weights = [w_ih, w_hh, *(_zero_where_missing(b, w_ih) for b in (b_ih, b_hh))]
    y, last, cell = torch.lstm(x, (h[None], c[None]), weights, True, 1, 0.0, False, False, False)
    return y, last[0], cell[0]


def _gru(x: Any, h: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    weights = [w_ih, w_hh, *(_zero_where_missing(b, w_ih) for b in (b_ih, b_hh))]
    y, last = torch.gru(x, h[None], weights, True, 1, 0.0, False, False, False)
    return y, last[0]


@pytest.mark.parametrize("bias", [(), ("_",), ("f64[48]",)], ids=["none", "second", "both"])
@pytest.mark.parametrize("time", [1, 9])
def test_lstm_is_pytorchs(time: int, bias: tuple[str, ...]) -> None:
    more = (*bias, "f64[48]") if bias else ()
    agrees("lstm", (*_inputs(time, 4, 7, 12, 4, 2), *more), {}, _lstm)


@pytest.mark.parametrize("bias", [(), ("_",), ("f64[36]",)], ids=["none", "second", "both"])
@pytest.mark.parametrize("time", [1, 9])
def test_gru_is_pytorchs(time: int, bias: tuple[str, ...]) -> None:
    more = (*bias, "f64[36]") if bias else ()
    agrees("gru", (*_inputs(time, 4, 7, 12, 3, 1), *more), {}, _gru)


def test_the_outputs_alone_have_a_gradient() -> None:
    agrees("lstm", _inputs(5, 2, 3, 4, 4, 2), {}, lambda *given: _lstm(*given)[0])
    agrees("gru", _inputs(5, 2, 3, 4, 3, 1), {}, lambda *given: _gru(*given)[0])


def test_cells_are_pytorchs() -> None:
    eye = {count: torch.eye(count, dtype=torch.float64) for count in (24, 18)}

    def lstm(gates: Any, c: Any) -> Any:
        _, h, after = _lstm(gates[None], c * 0, c, eye[24], torch.zeros(24, 6, dtype=c.dtype))
        return h, after

    agrees("lstm_cell", ("f64[5,24]", "f64[5,6]"), {}, lstm)
    agrees("lstm_cell", ("f64[5,24]", "f64[5,6]"), {}, lambda gates, c: lstm(gates, c)[0])

    def gru(x: Any, inner: Any, h: Any) -> Any:
        """Written out: PyTorch's has the product with h inside."""
        (a, b, c), (d, e, f) = x.chunk(3, 1), inner.chunk(3, 1)
        z, n = torch.sigmoid(b + e), torch.tanh(c + torch.sigmoid(a + d) * f)
        return (1 - z) * n + z * h

    agrees("gru_cell", ("f64[5,18]", "f64[5,18]", "f64[5,6]"), {}, gru)


@pytest.mark.parametrize(
    ("name", "shapes", "message"),
    [
        ("lstm", ["f32[3,2,4]", *["f32[2,5]"] * 2, "f32[20,4]", "f32[20,4]"], r"w_hh .* f32\[20,4\] and f32\[20,5\]"),
        ("lstm", ["f32[3,2,4]", *["f32[2,5]"] * 2, "f32[15,4]", "f32[20,5]"], r"w_ih .* f32\[15,4\] and f32\[20,4\]"),
        (
            "lstm",
            ["f32[3,2,4]", *["f32[3,5]"] * 2, "f32[20,4]", "f32[20,5]"],
            r"x is f32\[3,2,4\] and h0 is f32\[3,5\]",
        ),
        ("gru", ["f32[3,2,4]", "f32[2,5]", "f32[15,4]", "f32[15,5]", "f32[20]"], r"b_ih .* f32\[20\] and f32\[15\]"),
        ("lstm_cell", ["f32[2,9]", "f32[2,3]"], r"f32\[2,9\] and f32\[2,12\]"),
        ("gru_cell", ["f32[2,9]", "f32[2,8]", "f32[2,3]"], r"gates of h.* f32\[2,8\] and f32\[2,9\]"),
    ],
)
def test_refusals(name: str, shapes: list[str], message: str) -> None:
    refused(name, shapes, {}, message)
