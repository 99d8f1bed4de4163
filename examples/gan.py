"""A generative adversarial network (Goodfellow et al., 2014) that learns points on a circle, in a dynamic graph."""

import numpy as np

import sublet
from sublet import layers, nn
from sublet.nn.modules import Dense, Sequential


def dense(units):
    return Dense(units, initial=layers.kaiming_normal())


generator = Sequential(dense(64), nn.relu, dense(64), nn.relu, Dense(2), name="generator")
critic = Sequential(dense(64), nn.leaky_relu, dense(64), nn.leaky_relu, Dense(1), name="critic")
d = sublet.DynamicGraph()
optimizer = sublet.Adam(1e-3, beta1=0.5)


def parameters(net):
    return [parameter for parameter in d.parameters if parameter.name.startswith(f"{net.name}/")]


def loss_of(points, target):
    scores = critic(points)
    return nn.sigmoid_binary_cross_entropy(scores, np.full(scores.shape, target, np.float32)).mean()


@d.jit
def step(real):
    made = generator(nn.random_normal(d.key(), shape=(real.shape[0], 8)))
    critic_loss = loss_of(real, 0.9) + loss_of(made.detach(), 0.0)  # the critic learns, the generator does not
    d.minimize(critic_loss, optimizer, parameters(critic))
    generator_loss = loss_of(made, 1.0)  # scored by the critic after its update
    d.minimize(generator_loss, optimizer, parameters(generator))
    return {"critic": critic_loss, "generator": generator_loss}


def batches(epoch, steps=150, batch=128):
    random = np.random.default_rng(epoch)
    for _ in range(steps):
        angle = random.uniform(0, 2 * np.pi, batch)
        points = np.stack([np.cos(angle), np.sin(angle)], axis=1) + random.normal(0, 0.05, (batch, 2))
        yield {"real": points.astype(np.float32)}


def radii(count=500):
    """Return the distances of generated points from the centre."""
    with d.no_grad():
        made = generator(nn.random_normal(d.key(), shape=(count, 8))).numpy()
    return np.hypot(*made.T)


def main(epochs=8):
    history = sublet.fit(step, batches, epochs=epochs)
    found = radii()
    print(history.epochs[-1], f"radius {found.mean():.2f} +- {found.std():.2f}, expected 1.00 +- 0.05")
    return found


if __name__ == "__main__":
    main()
