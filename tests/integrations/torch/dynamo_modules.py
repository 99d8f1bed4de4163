"""Modules: buffers, modes, hooks, states that are loaded, copies, optimizers."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
from torch import nn

from tests.integrations.torch.cases import Compile, case, gradients, leaf

F = nn.functional


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.GELU(), nn.Linear(8, 3))


def stepped(run: Any, module: Any) -> Any:
    """A call with its backward; the gradients and buffers it leaves."""
    module.zero_grad()
    y = run(torch.randn(5, 4))
    y.square().sum().backward()
    return (
        y,
        [None if p.grad is None else p.grad.clone() for p in module.parameters()],
        [b.clone() for b in module.buffers()],
    )


@case
def training_and_evaluating(wrap: Compile) -> Any:
    module = small()
    run, found = wrap(module), []
    for mode in (True, False, True):
        module.train(mode)
        found.append(stepped(run, module))
    return found


@case
def frozen_statistics_have_gradients(wrap: Compile) -> Any:
    module, x = nn.BatchNorm2d(3).eval(), leaf(2, 3, 4, 4)
    y = wrap(lambda x: module(x) * 2)(x)
    return y, gradients(y, x, *module.parameters())


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))
        self.weight, self.python = nn.Parameter(torch.randn(4)), 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.python += 1
        return x * self.weight - self.mean + self.calls


@case
def buffers_that_are_changed_and_replaced(wrap: Compile) -> Any:
    module = Counting()
    run = wrap(module)
    return [stepped(run, module) for _ in range(3)], module.python


@case
def states_that_are_loaded_between_calls(wrap: Compile) -> Any:
    module, other = small(), small()
    run = wrap(module)
    found = [stepped(run, module)]
    module.load_state_dict(other.state_dict())
    found.append(stepped(run, module))
    module.load_state_dict({key: each * 2 for key, each in other.state_dict().items()}, assign=True)
    found.append(stepped(run, module))
    module[0].weight = nn.Parameter(torch.randn(8, 4))
    return found, stepped(run, module)


@case
def copies_and_pickles(wrap: Compile) -> Any:
    module = small()
    run = wrap(module)
    found = [stepped(run, module)]
    twin = copy.deepcopy(run)
    found += [stepped(twin, twin), stepped(run, module)]
    restored = pickle.loads(pickle.dumps(module))
    found.append(stepped(wrap(restored), restored))
    into = io.BytesIO()
    torch.save({key.removeprefix("_orig_mod."): each for key, each in run.state_dict().items()}, into)
    into.seek(0)
    fresh = small()
    fresh.load_state_dict(torch.load(into))
    return found, stepped(wrap(fresh), fresh)


@case
def hooks_of_modules(wrap: Compile) -> Any:
    module, seen = small(), []
    module[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    module[1].register_forward_hook(lambda module, args, result: result + 1)
    module[4].register_full_backward_hook(lambda module, inputs, outputs: seen.append(outputs[0].sum()))
    module[0].weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.sum()))
    return stepped(wrap(module), module), seen


@case
def what_is_frozen_and_thawed(wrap: Compile) -> Any:
    module = small()
    run, found = wrap(module), []
    for wanted in (True, False, True):
        module[0].weight.requires_grad_(wanted)
        found.append(stepped(run, module))
    return found


@case
def weights_used_twice(wrap: Compile) -> Any:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    return stepped(wrap(module), module)


@case
def weights_that_lie_otherwise(wrap: Compile) -> Any:
    module = nn.Linear(4, 6)
    module.weight = nn.Parameter(torch.randn(4, 6).t())
    module.bias = nn.Parameter(torch.randn(12)[::2])
    return stepped(wrap(module), module)


@case
def parts_that_are_compiled(wrap: Compile) -> Any:
    module = small()
    module[0] = wrap(module[0])
    module[4] = wrap(module[4])
    return stepped(module, module)


@case
def modules_compiled_in_place(wrap: Compile) -> Any:
    module = small()
    if wrap.__name__ == "compiled":
        module.compile(backend="sublet")
    return stepped(module, module)


@case
def steps_of_optimizers(wrap: Compile) -> Any:
    found = []
    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        module = nn.Linear(4, 3)
        optimizer = make(module.parameters(), lr=0.05)
        step = wrap(optimizer.step)
        for _ in range(3):
            optimizer.zero_grad()
            module(torch.ones(5, 4)).square().sum().backward()
            step()
        found.append([each.detach() for each in module.parameters()])
    return found


@case
def recurrent_modules(wrap: Compile) -> Any:
    lstm, cell = nn.LSTM(4, 6, num_layers=2, batch_first=True), nn.GRUCell(4, 6)
    x = leaf(2, 5, 4)
    y, (h, c) = wrap(lambda x: lstm(x))(x)
    z = wrap(lambda x, h: cell(x[:, 0], h))(x, h[0])
    return y, h, c, z, gradients(z, x)


@case
def attention_with_masks(wrap: Compile) -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = leaf(2, 5, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    y = wrap(lambda x: layer(x, src_mask=mask, is_causal=True))(x)
    return y, gradients(y, x)


@case
def embeddings_and_their_gradients(wrap: Compile) -> Any:
    words, bags = nn.Embedding(9, 4, padding_idx=2), nn.EmbeddingBag(9, 4, mode="mean")
    at = torch.randint(0, 9, (3, 5))
    y = wrap(lambda at: words(at).sum(1) * bags(at))(at)
    return y, gradients(y, words.weight, bags.weight)


@case
def normalisations_and_losses(wrap: Compile) -> Any:
    x, labels = leaf(4, 6, 5, 5), torch.randint(0, 6, (4, 5, 5))
    group, instance = nn.GroupNorm(3, 6), nn.InstanceNorm2d(6, affine=True)

    def function(x: Any) -> Any:
        y = instance(group(x))
        return (
            F.cross_entropy(y, labels, label_smoothing=0.1)
            + F.smooth_l1_loss(y, x.detach())
            + F.kl_div(y.log_softmax(1), x.softmax(1), reduction="batchmean")
        )

    loss = wrap(function)(x)
    return loss, gradients(loss, x, *group.parameters(), *instance.parameters())


@case
def up_and_down(wrap: Compile) -> Any:
    x = leaf(2, 4, 6, 6)
    transposed = nn.ConvTranspose2d(4, 4, 2, stride=2)

    def function(x: Any) -> Any:
        y = transposed(F.avg_pool2d(x, 2))
        y = y + F.interpolate(F.max_pool2d(x, 2), scale_factor=2, mode="bilinear")
        return F.pad(F.pixel_shuffle(y, 2), (1, 1, 0, 0), mode="reflect")

    y = wrap(function)(x)
    return y, gradients(y, x, transposed.weight)
