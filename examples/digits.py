"""Trains scikit-learn's digits with the dynamic graph: ordinary Python, remembered, and run in one planned arena.

python examples/digits.py
"""

import numpy as np
from sklearn.datasets import load_digits

import sublet
from sublet import layers, nn

found = load_digits()
images, labels = (found.images[:, None] / 8 - 1).astype(np.float32), found.target.astype(np.int64)
order = np.random.default_rng(0).permutation(len(labels))
test, train = np.split(order, [len(labels) // 5])

d = sublet.DynamicGraph()


def network(x):
    with d.scope("net"):
        x = nn.relu(layers.conv(x, 16, 3))
        x = nn.max_pool(nn.relu(layers.conv(x, 32, 3)), kernel=(2, 2), strides=(2, 2))
        return layers.dense(x.reshape(x.shape[0], -1), 10)


@d.jit
def step(x, y, rate):
    loss = nn.softmax_cross_entropy(network(x), y)[0].mean()
    if loss > 1:  # Python's own branch, on what was computed
        rate = rate / 2
    d.minimize(loss, sublet.SGD(rate, momentum=0.9))
    return loss


def main(epochs=8, batch=32):
    for epoch in range(epochs):
        chosen = np.random.default_rng(epoch).permutation(train)
        for begin in range(0, len(chosen) - batch + 1, batch):
            part = chosen[begin : begin + batch]
            loss = step(d.tensor(images[part]), d.tensor(labels[part]), 0.05 * 0.9**epoch)
        print(f"epoch {epoch}: loss {loss:.4f}")
    with d.no_grad():
        right = nn.argmax(network(d.tensor(images[test])), axis=1).numpy() == labels[test]
    print(f"{right.mean():.1%} right; arena {step.arena_bytes:,} bytes; {step.planned} plans")
    return right.mean()


if __name__ == "__main__":
    main()
