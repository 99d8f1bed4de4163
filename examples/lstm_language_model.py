"""An LSTM language model of characters, trained on the help text of numpy.einsum in a dynamic graph."""

import numpy as np

import sublet
from sublet import nn
from sublet.nn.modules import LSTM, Dense, Embedding, Module

TEXT = np.einsum.__doc__
ALPHABET = sorted({*TEXT})
CODES = np.array([ALPHABET.index(character) for character in TEXT])


class LanguageModel(Module):
    def __init__(self, characters, width):
        self.embedding = Embedding(characters, width)
        self.lstm = LSTM(width)
        self.head = Dense(characters)

    def forward(self, codes, states=None):  # [time, batch] -> scores [time, batch, characters]
        ys, states = self.lstm(self.embedding(codes), states)
        return self.head(ys), states


d = sublet.DynamicGraph()
net = LanguageModel(len(ALPHABET), 96)


@d.jit
def step(x, y):
    loss = nn.cross_entropy(net(x)[0], y, label_smoothing=0.01)
    d.minimize(loss, sublet.Clipped(sublet.Adam(5e-3), 1.0))
    return loss


@d.jit
def next_scores(codes, *state):  # one character, and the h and c after the characters before
    scores, [(h, c)] = net(codes, [state])
    return scores[-1, 0], h, c


def batches(epoch, time=48, batch=16, steps=24):
    random = np.random.default_rng(epoch)
    for _ in range(steps):
        rows = random.integers(0, len(CODES) - time, batch) + np.arange(time + 1)[:, None]
        yield {"x": CODES[rows[:-1]], "y": CODES[rows[1:]]}


def continuation(start, length):
    """Return the most probable text after `start`, one planned call a character."""
    text, state = start, [np.zeros((1, 96), np.float32)] * 2
    with d.no_grad(), d.evaluation():
        for i in range(len(start) + length - 1):
            scores, *state = next_scores(np.array([[ALPHABET.index(text[i])]]), *state)
            if i >= len(start) - 1:
                text += ALPHABET[int(nn.argmax(scores, axis=0))]
    return text


def main(epochs=6):
    history = sublet.fit(step, batches, epochs=epochs, patience=2)
    print([round(epoch["loss"], 2) for epoch in history.epochs])
    print(continuation("The Einstein ", 60))
    return history.epochs[-1]["loss"]


if __name__ == "__main__":
    main()
