"""Networks of torchvision's, written with modules: attributes have the names that they have there."""

from __future__ import annotations

from typing import Any

from sublet import nn
from sublet.nn.modules import (
    BatchNorm,
    Conv,
    ConvNorm,
    Dense,
    Dropout,
    GlobalAvgPool,
    Inception,
    MaxPool,
    Module,
    Sequential,
)


class BasicBlock(Module):
    def __init__(self, channels: int, stride: int, *, project: bool) -> None:
        self.conv1, self.bn1 = Conv(channels, 3, strides=stride, bias=False), BatchNorm()
        self.conv2, self.bn2 = Conv(channels, 3, bias=False), BatchNorm()
        self.downsample = Sequential(Conv(channels, 1, strides=stride, bias=False), BatchNorm()) if project else None

    def forward(self, x: Any) -> Any:
        y = nn.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return nn.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(Module):
    name = ""

    def __init__(self, classes: int = 1000) -> None:
        self.conv1, self.bn1 = Conv(64, 7, strides=2, bias=False), BatchNorm()
        self.maxpool = MaxPool(3, strides=2, pads=1)
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            Sequential(BasicBlock(64 << i, 1 + (i > 0), project=i > 0), BasicBlock(64 << i, 1, project=False))
            for i in range(4)
        )
        self.avgpool, self.fc = GlobalAvgPool(), Dense(classes)

    def forward(self, x: Any) -> Any:
        x = self.maxpool(nn.relu(self.bn1(self.conv1(x))))
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return self.fc(self.avgpool(x))


def unit(channels: int, kernel: int, **attrs: Any) -> ConvNorm:
    return ConvNorm(channels, kernel, epsilon=1e-3, **attrs)


def inception(ones: int, threes: tuple[int, int], fives: tuple[int, int], pooled: int) -> Inception:
    return Inception(ones, threes, fives, pooled, wide=3, unit=unit)


def googlenet(classes: int = 1000) -> Sequential:
    """Without the heads that only training has."""
    return Sequential(
        conv1=unit(64, 7, strides=2),
        maxpool1=MaxPool(3, strides=2, ceil=True),
        conv2=unit(64, 1),
        conv3=unit(192, 3),
        maxpool2=MaxPool(3, strides=2, ceil=True),
        inception3a=inception(64, (96, 128), (16, 32), 32),
        inception3b=inception(128, (128, 192), (32, 96), 64),
        maxpool3=MaxPool(3, strides=2, ceil=True),
        inception4a=inception(192, (96, 208), (16, 48), 64),
        inception4b=inception(160, (112, 224), (24, 64), 64),
        inception4c=inception(128, (128, 256), (24, 64), 64),
        inception4d=inception(112, (144, 288), (32, 64), 64),
        inception4e=inception(256, (160, 320), (32, 128), 128),
        maxpool4=MaxPool(2, ceil=True),
        inception5a=inception(256, (160, 320), (32, 128), 128),
        inception5b=inception(384, (192, 384), (48, 128), 128),
        avgpool=GlobalAvgPool(),
        dropout=Dropout(0.2),
        fc=Dense(classes),
        name="",
    )
