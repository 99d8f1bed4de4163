"""Networks of torchvision's, with its weights from a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sublet
from benchmarks.torch.vision import torchvision
from sublet.nn.modules import SelfAttention, pytorch_name
from tests.nn.modules.vision import ResNet18, googlenet

try:
    models = torchvision("models")
except (ImportError, RuntimeError) as error:  # not installed, or not for this PyTorch
    models, reason = None, f"torchvision: {error}"
else:
    reason = ""

NETWORKS: dict[str, Any] = {
    "ResNet-18": (ResNet18, lambda: models.resnet18(weights=None), 11_689_512),
    "GoogLeNet": (googlenet, lambda: models.googlenet(aux_logits=False, init_weights=False), 6_624_904),
}


@pytest.mark.skipif(models is None, reason=reason)
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_are_torchvisions_with_its_own_weights(name: str, tmp_path: Path) -> None:
    ours, theirs, parameters = NETWORKS[name]
    torch.manual_seed(0)
    model = theirs()
    x = torch.randn(2, 3, 224, 224)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(x)  # running statistics that are not those of the start
        expected = model.eval()(x).numpy()
    path = tmp_path / "state_dict.safetensors"
    written(model.state_dict(), path)
    g = sublet.Graph(name, training=False)
    g.output("y", ours()(g.input("x", tuple(x.shape))))
    assert sum(one.size for one in g.parameters) == parameters == sum(one.numel() for one in model.parameters())
    executable = sublet.compile(g, weights=sublet.open_weights(path, names=pytorch_name))
    found = executable(x=x.numpy())["y"]
    print(f"{name}: {parameters:,} parameters, at most {np.abs(found - expected).max():.1e} apart")
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert np.abs(expected[0] - expected[1]).max() > 0.1, "what goes in makes no difference"


def written(state_dict: dict[str, torch.Tensor], path: Path) -> None:
    """By the library of the format, where it is installed."""
    try:
        from safetensors.torch import save_file
    except ImportError:
        sublet.save_weights(path, state_dict)
    else:
        save_file(state_dict, path)


def test_attention_loads_from_pytorch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    torch.nn.init.normal_(theirs.in_proj_bias)
    x = torch.randn(2, 5, 8)
    sublet.save_weights(tmp_path / "w", theirs.state_dict())
    d = sublet.DynamicGraph()
    sublet.load_weights(tmp_path / "w", d, names=pytorch_name)
    found = SelfAttention(2, name="")(d.tensor(x.numpy())).numpy()
    np.testing.assert_allclose(found, theirs(x, x, x)[0].detach().numpy(), rtol=1e-5, atol=1e-6)
    assert pytorch_name("encoder/l1_reverse/hidden_bias") == "encoder.bias_hh_l1_reverse"
