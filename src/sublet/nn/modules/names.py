"""What PyTorch calls the parameters of the same layers, so that its files load."""

from __future__ import annotations

import re

LAST = {"scale": "weight", "mean": "running_mean", "variance": "running_var"}
CELL = re.compile(r"(?:(.*)/)?(l\d+(?:_reverse)?)/(input_weight|hidden_weight|bias|hidden_bias)")
KINDS = {"input_weight": "weight_ih", "hidden_weight": "weight_hh", "bias": "bias_ih", "hidden_bias": "bias_hh"}
ATTENTION = re.compile(r"(?:(.*)/)?(qkv|out)/(weight|bias)")


def pytorch_name(name: str) -> str:
    """What a PyTorch state_dict calls a parameter or state, where modules are attributes of the same names there.

    "layer1/0/bn1/scale" is "layer1.0.bn1.weight", "rnn/l0/hidden_weight" "rnn.weight_hh_l0". For
    `sublet.load_weights(path, net, names=pytorch_name)`; the outermost module has the name "" then.
    """
    around: str | None
    cell, attention = CELL.fullmatch(name), ATTENTION.fullmatch(name)
    if cell:
        around, last = cell[1], f"{KINDS[cell[3]]}_{cell[2]}"
    elif attention:
        around, last = attention[1], f"in_proj_{attention[3]}" if attention[2] == "qkv" else f"out_proj.{attention[3]}"
    else:
        around, _, last = name.rpartition("/")
        last = LAST.get(last, last)
    return f"{around.replace('/', '.')}.{last}" if around else last
