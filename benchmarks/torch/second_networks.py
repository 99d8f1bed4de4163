"""The second fourteen networks: recurrences, state-space models, detection, speech, masked images.

No layer draws random numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.torch.network import Logits, Network
from benchmarks.torch.vision import torchvision

torchvision("models")  # before transformers, which imports torchvision
import transformers  # noqa: E402

F = nn.functional


def tokens(vocabulary: int, *shape: int) -> Any:
    return torch.randint(3, vocabulary, shape)


def language(module: Any, vocabulary: int, batch: int, length: int) -> Network:
    """Return a network over `batch` sequences of `length` tokens, which predicts a token at every position."""
    return Network(
        lambda: Logits(module(), ("input_ids",)),
        lambda: (tokens(vocabulary, batch, length),),
        lambda: tokens(vocabulary, batch * length),
    )


def gemma2() -> nn.Module:
    return transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(
            vocab_size=16000, hidden_size=384, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=6,
            num_key_value_heads=2, head_dim=64, sliding_window=64, use_cache=False,
        )
    )  # fmt: skip


def t5() -> nn.Module:
    config = transformers.T5Config(
        d_model=384, d_kv=64, d_ff=1024, num_layers=4, num_heads=6, dropout_rate=0.0, decoder_start_token_id=0,
        feed_forward_proj="gated-gelu", use_cache=False,
    )  # fmt: skip
    return Logits(transformers.T5ForConditionalGeneration(config), ("input_ids", "decoder_input_ids"))


def distilbert() -> nn.Module:
    return transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(dropout=0.0, attention_dropout=0.0))


class Clip(nn.Module):
    """Contrastive image and text towers; the result is the matrix of similarities [images, texts]."""

    def __init__(self) -> None:
        super().__init__()
        text = {
            "vocab_size": 1000,
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
        }
        image = {
            "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4,
            "image_size": 96, "patch_size": 16,
        }  # fmt: skip
        self.model = transformers.CLIPModel(
            transformers.CLIPConfig(text_config=text, vision_config=image, projection_dim=256)
        )

    def forward(self, ids: Any, pixels: Any) -> Any:
        return self.model(input_ids=ids, pixel_values=pixels).logits_per_image


class MaskedAutoencoder(nn.Module):
    """A masked autoencoder of images; the result is the predicted patches [batch, patches, pixels of a patch]."""

    def __init__(self) -> None:
        super().__init__()
        self.model = transformers.ViTMAEForPreTraining(
            transformers.ViTMAEConfig(
                hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536,
                decoder_hidden_size=256, decoder_num_hidden_layers=4, decoder_num_attention_heads=8,
                decoder_intermediate_size=1024, image_size=128, patch_size=16,
            )
        )  # fmt: skip

    def forward(self, pixels: Any, noise: Any) -> Any:
        return self.model(pixels, noise=noise).logits


class Residual(nn.Module):
    """GroupNorm, SiLU and convolution, twice, with an embedding of the time step added between."""

    def __init__(self, inner: int, outer: int, embedding: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, inner), nn.SiLU(), nn.Conv2d(inner, outer, 3, padding=1))
        self.time = nn.Linear(embedding, outer)
        self.second = nn.Sequential(nn.GroupNorm(8, outer), nn.SiLU(), nn.Conv2d(outer, outer, 3, padding=1))
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Any, time: Any) -> Any:
        return self.skip(x) + self.second(self.first(x) + self.time(F.silu(time))[:, :, None, None])


class SpatialAttention(nn.Module):
    """Self-attention over the positions of an image."""

    def __init__(self, channels: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(8, channels)
        self.queries, self.result = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: Any) -> Any:
        batch, channels, height, width = x.shape
        flat = self.norm(x).flatten(2).transpose(1, 2)
        parts = self.queries(flat).view(batch, -1, 3, self.heads, channels // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*parts.unbind(0)).transpose(1, 2).reshape(batch, -1, channels)
        return x + self.result(attended).transpose(1, 2).view(batch, channels, height, width)


class UNet2D(nn.Module):
    """The denoising U-Net of diffusion models: three levels, attention at the lowest, time steps embedded."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256), embedding: int = 256) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.exp(-torch.arange(32) * 0.3))
        self.time = nn.Sequential(nn.Linear(64, embedding), nn.SiLU(), nn.Linear(embedding, embedding))
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down = nn.ModuleList(
            Residual(inner, outer, embedding) for inner, outer in zip((widths[0], *widths), widths, strict=False)
        )
        self.shrink = nn.ModuleList(nn.Conv2d(each, each, 3, 2, 1) for each in widths[:-1])
        self.middle = nn.ModuleList((Residual(widths[-1], widths[-1], embedding), SpatialAttention(widths[-1])))
        self.up = nn.ModuleList(
            Residual(lower + each, each, embedding)
            for lower, each in zip((widths[-1], *reversed(widths)), reversed(widths), strict=False)
        )
        self.last = nn.Sequential(nn.GroupNorm(8, widths[0]), nn.SiLU(), nn.Conv2d(widths[0], 3, 3, padding=1))

    def forward(self, x: Any, times: Any) -> Any:
        angles = times[:, None] * self.frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        x, skips = self.first(x), []
        for level, block in enumerate(self.down):
            x = block(x, time)
            skips.append(x)
            if level < len(self.shrink):
                x = self.shrink[level](x)
        x = self.middle[1](self.middle[0](x, time))
        for level, block in enumerate(self.up):
            x = block(torch.cat([x, skips.pop()], 1), time)
            if level < len(self.shrink):
                x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return self.last(x)


class PoolingBlock(nn.Module):
    """EfficientFormer's block of four dimensions: average pooling as the mixer, then convolutions of one pixel."""

    def __init__(self, channels: int, ratio: int = 4) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        self.mlp = nn.Sequential(
            nn.Conv2d(channels, ratio * channels, 1), nn.BatchNorm2d(ratio * channels), nn.GELU(),
            nn.Conv2d(ratio * channels, channels, 1), nn.BatchNorm2d(channels),
        )  # fmt: skip
        self.scales = nn.Parameter(torch.full((2, channels, 1, 1), 0.1))

    def forward(self, x: Any) -> Any:
        x = x + self.scales[0] * (self.pool(x) - x)
        return x + self.scales[1] * self.mlp(x)


class AttentionBlock(nn.Module):
    """EfficientFormer's block of three dimensions: attention with a learned bias of positions, then a perceptron."""

    def __init__(self, channels: int, positions: int, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.norm, self.second = heads, nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.queries, self.result = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.bias = nn.Parameter(torch.randn(heads, positions, positions) * 0.02)
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))

    def forward(self, x: Any) -> Any:
        batch, length, channels = x.shape
        parts = self.queries(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts.unbind(0)
        weights = (queries @ keys.transpose(-1, -2) * (channels // self.heads) ** -0.5 + self.bias).softmax(-1)
        x = x + self.result((weights @ values).transpose(1, 2).reshape(batch, length, channels))
        return x + self.mlp(self.second(x))


class EfficientFormer(nn.Module):
    """EfficientFormer (Li et al. 2022).

    A stem, four stages of pooling blocks, attention blocks at the end of the last.
    """

    def __init__(self, widths: tuple[int, ...] = (48, 96, 224, 448), depth: int = 2, size: int = 128) -> None:
        super().__init__()

        def shrinking(inner: int, outer: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(inner, outer, 3, 2, 1), nn.BatchNorm2d(outer))

        stages: list[nn.Module] = [
            nn.Sequential(shrinking(3, widths[0] // 2), nn.ReLU(), shrinking(widths[0] // 2, widths[0]), nn.ReLU())
        ]
        for level, width in enumerate(widths):
            if level:
                stages.append(shrinking(widths[level - 1], width))
            stages += [PoolingBlock(width) for _ in range(depth)]
        self.stages = nn.Sequential(*stages)
        self.attention = nn.Sequential(*(AttentionBlock(widths[-1], (size // 32) ** 2) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], 1000))

    def forward(self, x: Any) -> Any:
        return self.head(self.attention(self.stages(x).flatten(2).transpose(1, 2)).mean(1))


class Mixer(nn.Module):
    """ConvMixer's block: a depthwise convolution with a residual, then a convolution of one pixel."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.depthwise = nn.Sequential(
            nn.Conv2d(width, width, kernel, groups=width, padding="same"), nn.GELU(), nn.BatchNorm2d(width)
        )
        self.pointwise = nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width))

    def forward(self, x: Any) -> Any:
        return self.pointwise(self.depthwise(x) + x)


def convmixer(width: int = 256, depth: int = 8, kernel: int = 7, patch: int = 8) -> nn.Module:
    """Return ConvMixer (Trockman and Kolter 2022)."""
    return nn.Sequential(
        nn.Conv2d(3, width, patch, patch), nn.GELU(), nn.BatchNorm2d(width),
        *(Mixer(width, kernel) for _ in range(depth)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000),
    )  # fmt: skip


def mamba() -> nn.Module:
    return transformers.MambaForCausalLM(
        transformers.MambaConfig(
            vocab_size=8000, hidden_size=256, num_hidden_layers=4, state_size=16, use_cache=False, use_mambapy=False
        )
    )


class Recurrent(nn.Module):
    """Token embedding, recurrent layers over the sequence, and a linear layer at every position."""

    def __init__(self, layer: type[nn.RNNBase], vocabulary: int = 5000, width: int = 256) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.layers = layer(width, width, num_layers=2, batch_first=True)

    def forward(self, ids: Any) -> Any:
        return self.head(self.layers(self.embedding(ids))[0])


class Translator(nn.Module):
    """torch.nn.Transformer between two embeddings and a linear layer."""

    def __init__(self, vocabulary: int = 4000, width: int = 256) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.model = nn.Transformer(width, 4, 3, 3, 1024, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: Any, target: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.model(self.source(source), self.target(target), tgt_mask=mask, tgt_is_causal=True))


class Detector(nn.Module):
    """DETR over a small ResNet; the result is class logits and boxes side by side, [batch, queries, classes + 5]."""

    def __init__(self) -> None:
        super().__init__()
        backbone = transformers.ResNetConfig(
            embedding_size=32, hidden_sizes=[32, 64, 128, 256], depths=[1, 1, 1, 1], layer_type="basic",
            out_features=["stage4"],
        )  # fmt: skip
        self.model = transformers.DetrForObjectDetection(
            transformers.DetrConfig(
                use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone,
                d_model=256, encoder_layers=3, decoder_layers=3, encoder_ffn_dim=1024, decoder_ffn_dim=1024,
                num_queries=50, num_labels=20, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
                auxiliary_loss=False,
            )
        )  # fmt: skip

    def forward(self, pixels: Any) -> Any:
        result = self.model(pixels)
        return torch.cat([result.logits, result.pred_boxes], -1)


def detection_loss(result: Any, labels: Any) -> Any:
    """Return the cross-entropy of the classes and the distance of the boxes, query by query."""
    classes, boxes = labels[..., 0].long(), labels[..., 1:]
    return F.cross_entropy(result[..., :-4].flatten(0, 1), classes.flatten()) + F.l1_loss(result[..., -4:], boxes)


class Speech(nn.Module):
    """wav2vec 2.0 with a linear layer at every frame."""

    def __init__(self) -> None:
        super().__init__()
        self.model = transformers.Wav2Vec2ForCTC(
            transformers.Wav2Vec2Config(
                hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=32,
                conv_dim=(128,) * 7, num_conv_pos_embeddings=64, num_conv_pos_embedding_groups=8, layerdrop=0.0,
                hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0,
                final_dropout=0.0, mask_time_prob=0.0, mask_feature_prob=0.0, apply_spec_augment=False,
            )
        )  # fmt: skip

    def forward(self, samples: Any) -> Any:
        return self.model(samples).logits


def image_batch(batch: int, size: int) -> Any:
    return lambda: (torch.randn(batch, 3, size, size),)


def classes(batch: int) -> Any:
    return lambda: torch.randint(0, 1000, (batch,))


SECOND: dict[str, Network] = {
    "Gemma2": language(gemma2, 16000, 2, 128),
    "T5-gated": Network(t5, lambda: (tokens(32128, 4, 64), tokens(32128, 4, 48)), lambda: tokens(32128, 4 * 48)),
    "DistilBERT": language(distilbert, 30522, 4, 128),
    "CLIP": Network(Clip, lambda: (tokens(1000, 8, 32), torch.randn(8, 3, 96, 96)), lambda: torch.arange(8)),
    "ViT-MAE": Network(
        MaskedAutoencoder, lambda: (torch.randn(8, 3, 128, 128), torch.rand(8, 64)),
        lambda: torch.randn(8, 64, 768), F.mse_loss,
    ),
    "UNet2D": Network(
        UNet2D, lambda: (torch.randn(4, 3, 32, 32), torch.rand(4) * 1000), lambda: torch.randn(4, 3, 32, 32), F.mse_loss
    ),
    "EfficientFormer": Network(EfficientFormer, image_batch(8, 128), classes(8)),
    "ConvMixer": Network(convmixer, image_batch(8, 128), classes(8)),
    "Mamba": language(mamba, 8000, 2, 64),
    "GRU": Network(lambda: Recurrent(nn.GRU), lambda: (tokens(5000, 8, 64),), lambda: tokens(5000, 8 * 64)),
    "LSTM": Network(lambda: Recurrent(nn.LSTM), lambda: (tokens(5000, 8, 64),), lambda: tokens(5000, 8 * 64)),
    "Transformer": Network(
        Translator, lambda: (tokens(4000, 8, 64), tokens(4000, 8, 48)), lambda: tokens(4000, 8 * 48)
    ),
    "DETR": Network(
        Detector, image_batch(2, 256),
        lambda: torch.cat([torch.randint(0, 21, (2, 50, 1)).float(), torch.rand(2, 50, 4)], -1), detection_loss,
    ),
    "wav2vec2": Network(Speech, lambda: (torch.randn(4, 8000),), lambda: torch.randint(0, 32, (4 * 24,))),
}  # fmt: skip
