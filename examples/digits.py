"""Trains scikit-learn's digits with modules and a dynamic graph: ordinary Python, run in one planned arena."""

import numpy as np
from sklearn.datasets import load_digits

import sublet
from sublet import nn
from sublet.nn.modules import ConvNorm, Dense, GlobalAvgPool, ResidualBlock, Sequential

found = load_digits()
images, labels = (found.images[:, None] / 8 - 1).astype(np.float32), found.target.astype(np.int64)
test, train = np.split(np.random.default_rng(0).permutation(len(labels)), [len(labels) // 5])

d = sublet.DynamicGraph()
net = Sequential(ConvNorm(16, 3), ResidualBlock(16), ResidualBlock(32, strides=2), GlobalAvgPool(), Dense(10))


@d.jit
def step(x, y, rate):
    loss = nn.softmax_cross_entropy(net(d.tensor(x)), d.tensor(y))[0].mean()
    d.minimize(loss, sublet.SGD(rate / 2 if loss > 5 else rate, momentum=0.9))  # Python's own branch
    return loss


def batches(epoch, size=32):
    order = np.random.default_rng(epoch).permutation(train)
    for part in np.split(order, range(size, len(order), size))[:-1]:
        yield {"x": images[part], "y": labels[part], "rate": 0.05 * 0.9**epoch}


def main(epochs=8):
    print(sublet.fit(step, batches, epochs=epochs).epochs)
    with d.no_grad(), d.evaluation():
        right = (nn.argmax(net(d.tensor(images[test])), axis=1).numpy() == labels[test]).mean()
    print(f"{right:.1%} right; arena {step.arena_bytes:,} bytes; {step.planned} plans")
    return right


if __name__ == "__main__":
    main()
