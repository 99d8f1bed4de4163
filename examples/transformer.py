"""A small transformer that learns to sort digits: after a sequence and a separator come the digits in order."""

import numpy as np

import sublet
from sublet import layers, nn
from sublet.nn.modules import Dense, Embedding, LayerNorm, Module, TransformerBlock

LENGTH, SEPARATOR = 6, 10


class Transformer(Module):
    def __init__(self, tokens, width, blocks):
        self.tokens = Embedding(tokens, width, initial=layers.normal(0.02))
        self.positions = Embedding(2 * LENGTH, width, initial=layers.normal(0.02))
        self.blocks = [TransformerBlock(heads=4, causal=True) for _ in range(blocks)]
        self.norm = LayerNorm()
        self.head = Dense(tokens, initial=layers.xavier_uniform())

    def forward(self, tokens):  # [batch, time] -> scores [batch, time, tokens]
        x = self.tokens(tokens) + self.positions(np.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


d = sublet.DynamicGraph()
net = Transformer(11, 32, 2)


@d.jit
def step(x, y, rate):
    loss = nn.cross_entropy(net(x), y, ignore_index=SEPARATOR)
    d.minimize(loss, sublet.AdamW(rate))
    return {"loss": loss}


def examples(seed, batch=64):
    """Return sequences, and as labels the next tokens; only the sorted digits count."""
    digits = np.random.default_rng(seed).integers(0, 10, (batch, LENGTH))
    tokens = np.concatenate([digits, np.full((batch, 1), SEPARATOR), np.sort(digits)], axis=1)
    labels = np.where(np.arange(2 * LENGTH) < LENGTH, SEPARATOR, tokens[:, 1:])
    return {"x": tokens[:, :-1], "y": labels}


def batches(epoch, steps=60):
    return ({**examples((epoch, i)), "rate": 3e-3 * 0.8**epoch} for i in range(steps))


def accuracy():
    tests = examples(12345)
    with d.no_grad(), d.evaluation():
        found = nn.argmax(net(d.tensor(tests["x"])), axis=-1).numpy()
    return (found == tests["y"])[:, LENGTH:].mean()


def main(epochs=6):
    sublet.fit(step, batches, epochs=epochs, validate=lambda: {"accuracy": accuracy()})
    print(f"{accuracy():.1%} of the digits in order; arena {step.plan.arena_bytes:,} bytes")
    return accuracy()


if __name__ == "__main__":
    main()
