"""A small VITS speech network with random weights, as TorchScript's exporter writes it: durations decide its length."""

from __future__ import annotations

import io
import warnings
from typing import Any

import onnx
import torch
import transformers
from torch import nn

import benchmarks.torch.networks  # noqa: F401  # makes torchvision importable, which transformers asks for

SYMBOLS = 38


class _Wave(nn.Module):
    """The wave alone of a VITS network."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, letters: Any) -> Any:
        return self.network(input_ids=letters, return_dict=False)[0]


def vits() -> onnx.ModelProto:
    """Return the network: letters of [1, letters], and a wave of 256 samples a frame."""
    torch.manual_seed(0)
    config = transformers.VitsConfig(
        vocab_size=SYMBOLS, hidden_size=96, num_hidden_layers=3, num_attention_heads=2, ffn_dim=192, flow_size=96,
        spectrogram_bins=65, upsample_initial_channel=128, upsample_rates=[8, 8, 2, 2],
        upsample_kernel_sizes=[16, 16, 4, 4], prior_encoder_num_flows=2, use_stochastic_duration_prediction=False,
    )  # fmt: skip
    network = transformers.VitsModel(config).eval()
    network.noise_scale = 0.0  # no random numbers
    file, example = io.BytesIO(), torch.randint(1, SYMBOLS, (1, 20))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Wave(network), (example,), file, dynamo=False, opset_version=17, input_names=["letters"],
            output_names=["wave"], dynamic_axes={"letters": {1: "letters"}, "wave": {1: "samples"}},
        )  # fmt: skip
    return onnx.ModelProto.FromString(file.getvalue())
