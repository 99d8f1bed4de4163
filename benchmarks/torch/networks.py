"""The first thirteen networks, and NETWORKS: all that `benchmarks.torch` measures.

No layer of theirs draws random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.torch.network import Logits, Network
from benchmarks.torch.second_networks import SECOND
from benchmarks.torch.vision import torchvision

F = nn.functional
models = torchvision("models")
StochasticDepth = torchvision("ops").StochasticDepth


class Double(nn.Module):
    """Two convolutions, each normalised."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class UNet(nn.Module):
    """Four levels, each half as wide, joined by concatenation on the way up."""

    def __init__(self, classes: int = 5, width: int = 16) -> None:
        super().__init__()
        widths = [width << level for level in range(4)]
        self.down = nn.ModuleList(Double(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairwise(widths))
        self.join = nn.ModuleList(Double(2 * each, each) for each in widths[:-1])
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, x: Any) -> Any:
        kept = []
        for level, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for level in reversed(range(len(self.up))):
            x = self.join[level](torch.cat([kept[level], self.up[level](x)], 1))
        return self.last(x)


def swin(weights: None) -> nn.Module:
    """Swin-T without stochastic depth, whose probability torchvision sets by itself."""
    module = models.swin_t(weights=weights)
    for each in module.modules():
        if isinstance(each, StochasticDepth):
            each.p = 0.0
    return module


def _drawn(module: nn.Module) -> nn.Module:
    """The module with weights for those linear layers that begin with zeros, as a head of torchvision's does."""
    for each in module.modules():
        if isinstance(each, nn.Linear) and not each.weight.any():
            nn.init.normal_(each.weight, std=0.02)
    return module


def vision(make: Callable[..., nn.Module], batch: int = 4, size: int = 128, **options: Any) -> Network:
    return Network(
        lambda: _drawn(make(weights=None, **options)),
        lambda: (torch.randn(batch, 3, size, size),),
        lambda: torch.randint(0, 1000, (batch,)),
    )


def language(make: Callable[[], nn.Module], vocabulary: int, batch: int = 4, length: int = 128) -> Network:
    tokens = (lambda: torch.randint(0, vocabulary, (batch, length)),)
    return Network(
        lambda: Logits(make(), ("input_ids",), use_cache=False),
        lambda: tuple(each() for each in tokens),
        lambda: torch.randint(0, vocabulary, (batch * length,)),
    )


def gpt2() -> nn.Module:
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**off))


def gpt2_blocks() -> nn.Module:
    """Four blocks of GPT-2 with a small vocabulary: logits are no larger than other results."""
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=768, n_embd=384, n_layer=4, n_head=6, **off))


class PerceptronBlock(nn.Module):
    """A normalised block of two linear layers around a GELU, added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def perceptron() -> nn.Module:
    """Six blocks, and a layer of ten classes."""
    return nn.Sequential(*[PerceptronBlock(256) for _ in range(6)], nn.Linear(256, 10))


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=32000, hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8,
            num_key_value_heads=4,
        )
    )  # fmt: skip


def bert() -> nn.Module:
    config = transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=5)
    return Logits(transformers.BertForSequenceClassification(config), ("input_ids", "attention_mask"))


def t5() -> nn.Module:
    config = transformers.T5Config(dropout_rate=0.0, num_layers=6, decoder_start_token_id=0, use_cache=False)
    return Logits(transformers.T5ForConditionalGeneration(config), ("input_ids", "decoder_input_ids"))


def whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6, decoder_attention_heads=6,
        encoder_ffn_dim=1536, decoder_ffn_dim=1536, dropout=0.0, use_cache=False,
    )  # fmt: skip
    return Logits(transformers.WhisperForConditionalGeneration(config), ("input_features", "decoder_input_ids"))


def tokens(vocabulary: int, *shape: int) -> Any:
    return torch.randint(3, vocabulary, shape)


STILL = {"stochastic_depth_prob": 0.0}
NETWORKS: dict[str, Network] = {
    "ResNet-18": vision(models.resnet18, 8, 224),
    "ResNet-50": vision(models.resnet50, 4, 224),
    "MobileNetV3": vision(models.mobilenet_v3_large, 4, 224, dropout=0.0),
    "EfficientNet-B0": vision(models.efficientnet_b0, 4, 224, dropout=0.0, **STILL),
    "ViT-B/16": vision(models.vit_b_16, 2, 224),
    "Swin-T": vision(swin, 2, 224),
    "ConvNeXt-T": vision(models.convnext_tiny, 2, 224, **STILL),
    "U-Net": Network(
        UNet, lambda: (torch.randn(4, 3, 128, 128),), lambda: torch.randint(0, 5, (4, 128, 128))
    ),
    "GPT-2": language(gpt2, 50257),
    "GPT-2 blocks": language(gpt2_blocks, 768),
    "MLP": Network(perceptron, lambda: (torch.randn(1024, 256),), lambda: torch.randint(0, 10, (1024,))),
    "BERT": Network(
        bert,
        lambda: (tokens(30522, 4, 128), torch.ones(4, 128, dtype=torch.int64).tril(100)),
        lambda: torch.randint(0, 5, (4,)),
    ),
    "T5-small": Network(t5, lambda: (tokens(32128, 4, 64), tokens(32128, 4, 48)), lambda: tokens(32128, 4 * 48)),
    "Llama-like": language(llama, 32000),
    "Whisper-tiny": Network(
        whisper, lambda: (torch.randn(1, 80, 3000), tokens(50000, 1, 32)), lambda: tokens(50000, 32)
    ),
    **SECOND,
}  # fmt: skip
