"""PyTorch's names of parameters, for loading and saving weights."""

from __future__ import annotations

import re

PARAMETER_NAMES = {"scale": "weight", "mean": "running_mean", "variance": "running_var"}
CELL = re.compile(r"(?:(.*)/)?(l\d+(?:_reverse)?)/(input_weight|hidden_weight|bias|hidden_bias)")
CELL_PARAMETER_NAMES = {
    "input_weight": "weight_ih",
    "hidden_weight": "weight_hh",
    "bias": "bias_ih",
    "hidden_bias": "bias_hh",
}
ATTENTION = re.compile(r"(?:(.*)/)?(qkv|out)/(weight|bias)")


def pytorch_name(name: str) -> str:
    """Return the name of a parameter or state in a PyTorch state_dict with equally named attributes.

    "layer1/0/bn1/scale" becomes "layer1.0.bn1.weight", "rnn/l0/hidden_weight" becomes "rnn.weight_hh_l0". Use the
    function as `sublet.load_weights(path, net, names=pytorch_name)`, with name "" for the outermost module.
    """
    outer: str | None
    cell, attention = CELL.fullmatch(name), ATTENTION.fullmatch(name)
    if cell:
        outer, last = cell[1], f"{CELL_PARAMETER_NAMES[cell[3]]}_{cell[2]}"
    elif attention:
        outer, last = attention[1], f"in_proj_{attention[3]}" if attention[2] == "qkv" else f"out_proj.{attention[3]}"
    else:
        outer, _, last = name.rpartition("/")
        last = PARAMETER_NAMES.get(last, last)
    return f"{outer.replace('/', '.')}.{last}" if outer else last
