"""Convolutional networks for 1000 classes, over x[N, 3, 224, 224] unless said otherwise."""

from __future__ import annotations

from sublet import layers, nn
from sublet.nn.graph import graph_of
from sublet.nn.tensor import Tensor


def conv_norm(x: Tensor, channels: int, kernel: int | tuple[int, int], name: str, **attrs: int) -> Tensor:
    """A convolution without bias, and batch normalisation."""
    with graph_of(x).scope(name):
        return layers.batch_norm(layers.conv(x, channels, kernel, bias=False, **attrs))


def max_pool(x: Tensor, kernel: int, stride: int, pad: int = 0, *, ceil: bool = False) -> Tensor:
    return nn.max_pool(x, kernel=(kernel,) * 2, strides=(stride,) * 2, pads=(pad,) * 4, ceil=ceil)


def avg_pool(x: Tensor, kernel: int, stride: int) -> Tensor:
    return nn.avg_pool(x, kernel=(kernel,) * 2, strides=(stride,) * 2)


def classified(x: Tensor, classes: int = 1000) -> Tensor:
    """The mean of each channel, and a dense layer."""
    return layers.dense(x.mean(2, 3), classes, name="classes")


def _bottleneck(x: Tensor, width: int, stride: int, name: str, *, v1d: bool) -> Tensor:
    with graph_of(x).scope(name):
        y = nn.relu(conv_norm(x, width, 1, "a"))
        y = nn.relu(conv_norm(y, width, 3, "b", strides=stride))
        y = conv_norm(y, 4 * width, 1, "c")
        if x.shape != y.shape:
            if v1d:
                x = avg_pool(x, stride, stride) if stride > 1 else x
                x = layers.conv(x, 4 * width, 1, bias=False, name="shortcut")
            else:
                x = conv_norm(x, 4 * width, 1, "shortcut", strides=stride)
        return nn.relu(x + y)


def resnet(x: Tensor, depths: tuple[int, ...], *, v1d: bool = False) -> Tensor:
    """ResNet with bottlenecks (He et al., 2016).

    v1d has the stem of He et al. (2019), and shortcuts that are an average and a convolution, as libnnc's sample has.
    """
    if v1d:
        for i, (channels, stride) in enumerate(((32, 2), (32, 1), (64, 1))):
            x = nn.relu(conv_norm(x, channels, 3, f"stem{i}", strides=stride))
    else:
        x = nn.relu(conv_norm(x, 64, 7, "stem", strides=2))
    x = max_pool(x, 3, 2, 1)
    for stage, depth in enumerate(depths):
        for block in range(depth):
            stride = 2 if stage and not block else 1
            x = _bottleneck(x, 64 << stage, stride, f"stage{stage}.{block}", v1d=v1d)
    return classified(x)


def resnet50(x: Tensor) -> Tensor:
    return resnet(x, (3, 4, 6, 3))


def resnet50_v1d(x: Tensor) -> Tensor:
    return resnet(x, (3, 4, 6, 3), v1d=True)


def resnet101_v1d(x: Tensor) -> Tensor:
    return resnet(x, (3, 4, 23, 3), v1d=True)


def _vgg(x: Tensor, depths: tuple[int, ...]) -> Tensor:
    for stage, depth in enumerate(depths):
        for i in range(depth):
            x = nn.relu(layers.conv(x, min(64 << stage, 512), 3, name=f"conv{stage}.{i}"))
        x = max_pool(x, 2, 2)
    return x


def vgg13(x: Tensor) -> Tensor:
    """The convolutions of VGG-13 (Simonyan and Zisserman, 2015) and one dense layer over their means."""
    return classified(_vgg(x, (2, 2, 2, 2, 2)))


def vgg16(x: Tensor) -> Tensor:
    """VGG-16 with its three dense layers, without dropout."""
    x = _vgg(x, (2, 2, 3, 3, 3)).reshape(x.shape[0], -1)
    for i in range(2):
        x = nn.relu(layers.dense(x, 4096, name=f"dense{i}"))
    return layers.dense(x, 1000, name="classes")


def densenet121(x: Tensor) -> Tensor:
    """DenseNet-121 (Huang et al., 2017)."""
    growth, depths = 32, (6, 12, 24, 16)
    x = nn.relu(conv_norm(x, 64, 7, "stem", strides=2))
    x = max_pool(x, 3, 2, 1)
    for block, depth in enumerate(depths):
        for i in range(depth):
            with graph_of(x).scope(f"block{block}.{i}"):
                y = layers.conv(nn.relu(layers.batch_norm(x, name="n1")), 4 * growth, 1, bias=False, name="c1")
                y = layers.conv(nn.relu(layers.batch_norm(y, name="n2")), growth, 3, bias=False, name="c2")
            x = nn.concat(x, y, axis=1)
        with graph_of(x).scope(f"transition{block}"):
            x = nn.relu(layers.batch_norm(x))
            if block < len(depths) - 1:
                x = avg_pool(layers.conv(x, x.shape[1] // 2, 1, bias=False), 2, 2)
    return classified(x)


def _inception(x: Tensor, sizes: tuple[int, int, int, int, int, int], name: str) -> Tensor:
    one, three_in, three, five_in, five, pooled = sizes
    with graph_of(x).scope(name):
        a = nn.relu(layers.conv(x, one, 1, name="1x1"))
        b = nn.relu(layers.conv(x, three_in, 1, name="3x3.in"))
        b = nn.relu(layers.conv(b, three, 3, name="3x3"))
        c = nn.relu(layers.conv(x, five_in, 1, name="5x5.in"))
        c = nn.relu(layers.conv(c, five, 5, name="5x5"))
        d = nn.relu(layers.conv(max_pool(x, 3, 1, 1), pooled, 1, name="pool"))
        return nn.concat(a, b, c, d, axis=1)


def googlenet(x: Tensor) -> Tensor:
    """GoogLeNet (Szegedy et al., 2015) without auxiliary classifiers, normalisation and dropout."""
    x = max_pool(nn.relu(layers.conv(x, 64, 7, strides=2, name="stem")), 3, 2, 1)
    x = nn.relu(layers.conv(x, 64, 1, name="conv2"))
    x = max_pool(nn.relu(layers.conv(x, 192, 3, name="conv3")), 3, 2, 1)
    blocks: list[tuple[int, int, int, int, int, int] | None] = [
        *((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), None),
        *((192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64)),
        *((112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128), None),
        *((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
    ]
    for i, sizes in enumerate(blocks):
        x = max_pool(x, 3, 2, 1) if sizes is None else _inception(x, sizes, f"inception{i}")
    return classified(x)


def _mbconv(x: Tensor, channels: int, kernel: int, stride: int, expand: int, name: str) -> Tensor:
    with graph_of(x).scope(name):
        hidden = x.shape[1] * expand
        y = nn.swish(conv_norm(x, hidden, 1, "expand")) if expand > 1 else x
        y = nn.swish(conv_norm(y, hidden, kernel, "depthwise", strides=stride, groups=hidden))
        squeezed = y.mean(2, 3, keepdims=True)
        squeezed = nn.swish(layers.conv(squeezed, max(1, x.shape[1] // 4), 1, name="squeeze"))
        y = y * nn.sigmoid(layers.conv(squeezed, hidden, 1, name="excite"))
        y = conv_norm(y, channels, 1, "project")
        return x + y if x.shape == y.shape else y


def efficientnet_b0(x: Tensor) -> Tensor:
    """EfficientNet-B0 (Tan and Le, 2019) without dropout."""
    x = nn.swish(conv_norm(x, 32, 3, "stem", strides=2))
    stages = (
        *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)),
        *((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
    )
    for stage, (expand, channels, depth, stride, kernel) in enumerate(stages):
        for i in range(depth):
            x = _mbconv(x, channels, kernel, 1 if i else stride, expand, f"stage{stage}.{i}")
    return classified(nn.swish(conv_norm(x, 1280, 1, "head")))


def unet(x: Tensor, classes: int = 2, width: int = 16, depth: int = 3) -> Tensor:
    """U-Net (Ronneberger et al., 2015), padded, with batch normalisation: logits for every pixel of x."""

    def twice(x: Tensor, channels: int, name: str) -> Tensor:
        with graph_of(x).scope(name):
            return nn.relu(conv_norm(nn.relu(conv_norm(x, channels, 3, "a")), channels, 3, "b"))

    skips = []
    for level in range(depth):
        x = twice(x, width << level, f"down{level}")
        skips.append(x)
        x = max_pool(x, 2, 2)
    x = twice(x, width << depth, "bottom")
    for level in reversed(range(depth)):
        up = nn.upsample(x, size=skips[level].shape[2:])
        up = layers.conv(up, width << level, 3, name=f"up{level}.conv")
        x = twice(nn.concat(skips[level], up, axis=1), width << level, f"up{level}")
    return layers.conv(x, classes, 1, name="classes")


def small_resnet(x: Tensor, classes: int = 10, width: int = 16) -> Tensor:
    """A ResNet of three stages for small images."""

    def conv_norm(x: Tensor, channels: int, kernel: int, name: str, stride: int = 1) -> Tensor:
        with graph_of(x).scope(name):
            return layers.batch_norm(layers.conv(x, channels, kernel, strides=stride, bias=False))

    x = nn.relu(conv_norm(x, width, 3, "stem"))
    for stage in range(3):
        with graph_of(x).scope(f"stage{stage}"):
            stride = 2 if stage else 1
            y = nn.relu(conv_norm(x, width << stage, 3, "a", stride))
            y = conv_norm(y, width << stage, 3, "b")
            if x.shape != y.shape:
                x = conv_norm(x, width << stage, 1, "shortcut", stride)
            x = nn.relu(x + y)
    return classified(x, classes)
