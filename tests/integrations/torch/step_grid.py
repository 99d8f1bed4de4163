"""Random training loops, eager and by `sublet.torch.train_step`, five steps each: equal, or refused before the first.

    python -m tests.integrations.torch.step_grid [--count 2000] [--first 0]

Losses, results, weights, buffers, states of optimizer, scaler and schedulers, and the random generator are compared.
A tensor may lie from eager's at most four times as far as eager's lies from the same loop in float64, and a rounding
error of its precision: 8e-3 of its largest element in bfloat16, 2e-3 in float16, 1e-5 in float32, 1e-9 in float64, and
30 times as much after steps of Adam with its smallest epsilon.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint

import sublet
from sublet.base.errors import SubletError

F = nn.functional
STEPS = 6
CLASSES = 4


class Network(nn.Module):
    """A small network with the parts that a case asks for. It can be called with keywords and returns the features."""

    def __init__(self, parts: frozenset[str]) -> None:
        super().__init__()
        self.parts = parts
        self.words = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16) if "batch norm" in parts else nn.LayerNorm(16)
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.GELU())
        self.inside = nn.BatchNorm1d(16) if "batch norm in checkpoint" in parts else nn.Identity()
        self.drop = nn.Dropout(0.3) if "dropout" in parts else nn.Identity()
        self.last = nn.Linear(16, 16 if "shared" in parts else CLASSES)
        self.unused = nn.Parameter(torch.ones(2))
        if "shared" in parts:
            self.last.weight = self.inner[0].weight
        self.register_buffer("average", torch.zeros(16))

    def block(self, h: Any) -> Any:
        return self.drop(self.inside(self.inner(h)))

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        h = self.norm(self.words(x))
        if "checkpoint" in self.parts:
            h = checkpoint(self.block, h, use_reentrant=False)
        elif "reentrant checkpoint" in self.parts:
            h = checkpoint(self.block, h, use_reentrant=True)
        else:
            h = self.block(h)
        if "moving average" in self.parts:
            self.average.mul_(0.9).add_(0.1 * h.detach().mean(0).to(self.average.dtype))
        return {"logits": self.last(h)[:, :CLASSES] * scale, "features": h}


PARTS = (
    "batch norm", "dropout", "checkpoint", "reentrant checkpoint", "shared", "moving average",
    "batch norm in checkpoint",
)  # fmt: skip
PRECISIONS = ("f32", "f32", "bf16", "f16", "f64")
ROUNDING = {"f32": 1e-5, "bf16": 8e-3, "f16": 2e-3, "f64": 1e-9}
WHO = ("all", "frozen", "unfrozen", "groups", "replaced storage")
HOOKS = (
    "forward", "forward pre", "backward", "backward pre", "tensor", "accumulated gradient", "step pre", "step post",
    "global forward", "global step post",
)  # fmt: skip
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=4),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=2),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 8),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.05, total_steps=20, cycle_momentum=_has_momentum(o)),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.05, cycle_momentum=_has_momentum(o)),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, total_iters=1), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
}
LOSSES = ("function", "module", "weighted", "smoothed", "tuple")


def _has_momentum(optimizer: Any) -> bool:
    group = optimizer.param_groups[0]
    return "betas" in group or bool(group.get("momentum"))


@dataclass(frozen=True)
class Case:
    optimizer: str
    options: tuple[tuple[str, Any], ...]
    parts: frozenset[str]
    precision: str
    who: str
    scheduler: str
    hook: str
    loss: str
    clip: str
    accumulate: int
    keyword: bool
    seed: int

    @property
    def may_be_refused(self) -> bool:
        """Whether the step may say no: other optimizers, hooks, statistics within a checkpoint."""
        within = {"batch norm in checkpoint"} <= self.parts and self.parts & {"checkpoint", "reentrant checkpoint"}
        options = dict(self.options)
        refused = options.get("differentiable") or (options.get("fused") and self.precision == "f16")
        return bool(self.optimizer not in OPTIONS or refused or self.hook or within)

    @property
    def moves(self) -> bool:
        """Whether a fused optimizer meets a weight that lies otherwise than its state."""
        return bool(dict(self.options).get("fused")) and self.who == "replaced storage"


OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "SGD": {
        "momentum": (0, 0.9), "dampening": (0, 0.1), "weight_decay": (0, 0.05), "nesterov": (False, True),
        "maximize": (False, True), "foreach": (None, False, True), "differentiable": (False, True),
        "fused": (None, True),
    },
    **{
        name: {
            "betas": ((0.9, 0.999), (0.8, 0.9)), "eps": (1e-8, 1e-3), "weight_decay": (0, 0.1),
            "amsgrad": (False, True), "foreach": (None, False, True), "maximize": (False, True),
            "capturable": (False,), "differentiable": (False,), "fused": (None, True),
        }
        for name in ("Adam", "AdamW")
    },
}  # fmt: skip
OPTIONS["Adam"]["decoupled_weight_decay"] = (False, True)
OTHERS = (
    "Adagrad",
    "Adadelta",
    "RMSprop",
    "Rprop",
    "NAdam",
    "RAdam",
    "ASGD",
    "Adamax",
    "Adafactor",
    "SparseAdam",
    "LBFGS",
)


def drawn(seed: int) -> Case:
    """The case of a number."""
    draw = random.Random(seed)
    name = draw.choice(["SGD", "SGD", "Adam", "Adam", "AdamW"]) if draw.random() < 0.96 else draw.choice(OTHERS)
    options = {"lr": draw.choice((0.01, 0.05))}
    for key, values in OPTIONS.get(name, {}).items():
        if draw.random() < 0.4:
            options[key] = draw.choice(values)
    if options.get("nesterov") and not (options.get("momentum") and not options.get("dampening")):
        options["nesterov"] = False
    if options.get("fused"):
        options.pop("foreach", None)
        options.pop("differentiable", None)
    if options.get("differentiable"):
        options.pop("foreach", None)
    parts = {part for part in PARTS if draw.random() < 0.2}
    if {"checkpoint", "reentrant checkpoint"} <= parts:
        parts.discard("checkpoint")
    precision, who = draw.choice(PRECISIONS), draw.choice(WHO)
    if options.get("fused") and name == "SGD" and who == "unfrozen":
        options.pop("fused")  # PyTorch's own step raises where only some parameters have a state
    if options.get("fused") and name == "SGD" and not options.get("momentum"):
        options.pop("fused")  # PyTorch's own step raises once a scheduler moves the momentum
    if name == "LBFGS" and who == "groups":
        who = "all"  # PyTorch's own optimizer takes one group
    if "betas" in OPTIONS.get(name, {}) and precision in ("bf16", "f16"):
        options["eps"] = 1e-3  # a step of Adam is the sign of a gradient, and that of rounding noise is noise
    return Case(
        name, tuple(options.items()), frozenset(parts), precision, who,
        draw.choice(["", "", *SCHEDULERS]), draw.choice(HOOKS) if draw.random() < 0.06 else "", draw.choice(LOSSES),
        draw.choice(("", "", "norm", "value")), draw.choice((1, 1, 1, 3)), draw.random() < 0.2, seed,
    )  # fmt: skip


class Loop:
    """One training loop of a case: the eager one, that in float64, or the planned one."""

    def __init__(self, case: Case, module: Any, planned: bool, double: bool) -> None:
        self.case, self.module, self.double = (
            case,
            module.double() if double or case.precision == "f64" else module,
            double,
        )
        if case.who in ("frozen", "unfrozen"):
            for parameter in module.inner.parameters():
                parameter.requires_grad_(False)
        groups: Any = list(module.parameters())
        if case.who == "groups":
            groups = [{"params": groups[::2]}, {"params": groups[1::2], "weight_decay": 0.01}]
        self.optimizer = getattr(torch.optim, case.optimizer)(groups, **dict(case.options))
        self.scheduler = SCHEDULERS[case.scheduler](self.optimizer) if case.scheduler else None
        scaled = case.precision == "f16"
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=2) if scaled else None
        self.hooked: list[str] = []
        self.handles = [_hooked(case.hook, module, self.optimizer, self.hooked)] if case.hook else []
        self.ema = torch.optim.swa_utils.AveragedModel(module)
        self.loss = self._loss()
        self.step = None
        if planned:
            clip = {"norm": {"clip_norm": 0.1}, "value": {"clip_value": 0.02}}.get(case.clip, {})
            try:
                self.step = sublet.torch.train_step(
                    module, self.loss, self.optimizer, accumulate=case.accumulate, scaler=self.scaler, **clip
                )
            except SubletError:
                self.close()
                raise

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()

    def _loss(self) -> Any:
        kind, dtype = self.case.loss, torch.float64 if self.double or self.case.precision == "f64" else torch.float32
        module = {
            "weighted": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 1.0], dtype=dtype)),
            "smoothed": nn.CrossEntropyLoss(label_smoothing=0.1),
        }.get(kind, nn.CrossEntropyLoss())
        if kind == "tuple":
            return lambda out, y: (F.cross_entropy(out["logits"], y), {"logits": out["logits"], "n": 3})
        if kind == "function":
            return lambda out, y: F.cross_entropy(out["logits"], y) * 0.5
        return _OfLogits(module)

    def run(self, number: int) -> Any:
        """One call; what the loss returned."""
        case = self.case
        generator = torch.Generator().manual_seed(100 * case.seed + number)
        x = torch.randn(12, 8, generator=generator)
        if case.precision == "f16" and number == 2:
            x = x * 1e6  # infinite in float16, so that a step is skipped
        x = x.double() if self.double or case.precision == "f64" else x
        y = torch.randint(0, CLASSES, (12,), generator=generator)
        if case.who == "unfrozen" and number == 3:
            for parameter in self.module.inner.parameters():
                parameter.requires_grad_(True)
        if case.who == "replaced storage" and number == 2:
            self.module.words.weight.data = self.module.words.weight.data.t().contiguous().t()
        keywords = {"scale": 0.5} if case.keyword else {}
        torch.manual_seed(7 * case.seed + number)
        kind = {"bf16": torch.bfloat16, "f16": torch.float16}.get(case.precision)
        mixed = torch.autocast("cpu", kind) if kind and not self.double else contextlib.nullcontext()
        last = number % case.accumulate == case.accumulate - 1
        if self.step is not None:
            with mixed:
                result = self.step(x, y, **keywords)
        else:
            result = self._eagerly(x, y, keywords, mixed, last)
        if last:
            self.ema.update_parameters(self.module)
            if self.scheduler:
                self.scheduler.step()
        return result

    def _eagerly(self, x: Any, y: Any, keywords: Any, mixed: Any, last: bool) -> Any:
        case, parameters = self.case, list(self.module.parameters())
        with mixed:
            result = self.loss(self.module(x, **keywords), y)
        loss = result[0] if isinstance(result, tuple) else result
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        if last:
            if self.scaler:
                self.scaler.unscale_(self.optimizer)
            if case.clip == "norm":
                nn.utils.clip_grad_norm_(parameters, 0.1)
            if case.clip == "value":
                nn.utils.clip_grad_value_(parameters, 0.02)
            if self.scaler:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
            self.optimizer.zero_grad()
        return result

    def tensors(self) -> dict[str, Any]:
        """All that a loop leaves behind, by name."""
        found = {f"module.{name}": each for name, each in self.module.state_dict().items()}
        found |= {f"ema.{name}": each for name, each in self.ema.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            found |= {f"state.{number}.{key}": each for key, each in state.items()}
        return {name: torch.as_tensor(each).detach().clone() for name, each in found.items() if each is not None}

    def plain(self) -> Any:
        """What must be the same, number for number: schedulers, scaler, groups."""
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups]
        return (
            groups,
            self.scaler.state_dict() if self.scaler else None,
            _plain(self.scheduler.state_dict()) if self.scheduler else None,
        )


class _OfLogits(nn.Module):
    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, out: Any, y: Any) -> Any:
        return self.loss(out["logits"], y)


def _plain(state: Any) -> Any:
    return {key: each for key, each in state.items() if isinstance(each, int | float | list)}


def _hooked(kind: str, module: Any, optimizer: Any, called: list[str]) -> Any:
    def note(*_: Any) -> None:
        called.append(kind)

    modules = nn.modules.module
    return {
        "forward": lambda: module.inner.register_forward_hook(note),
        "forward pre": lambda: module.inner.register_forward_pre_hook(note),
        "backward": lambda: module.inner.register_full_backward_hook(note),
        "backward pre": lambda: module.inner.register_full_backward_pre_hook(note),
        "tensor": lambda: module.words.weight.register_hook(note),
        "accumulated gradient": lambda: module.words.weight.register_post_accumulate_grad_hook(note),
        "step pre": lambda: optimizer.register_step_pre_hook(note),
        "step post": lambda: optimizer.register_step_post_hook(note),
        "global forward": lambda: modules.register_module_forward_hook(note),
        "global step post": lambda: register_optimizer_step_post_hook(note),
    }[kind]()


def judge(case: Case) -> str:
    """What becomes of a case: "equal" or "refused". Raises AssertionError for anything else."""
    torch.manual_seed(case.seed)
    start = Network(case.parts)
    loops: list[Loop] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            planned = copy.deepcopy(start)
            before = {name: each.clone() for name, each in planned.state_dict().items()}
            try:
                loops.append(Loop(case, planned, True, False))
                ours = [(loops[0].run(0), torch.get_rng_state())]
            except SubletError as error:
                if not case.may_be_refused:
                    raise AssertionError(f"{case}: refused: {error}") from error
                assert all(torch.equal(each, before[name]) for name, each in planned.state_dict().items()), "changed"
                return "refused"
            assert not case.hook, f"{case}: neither equal nor refused"
            assert case.optimizer in OPTIONS, f"{case}: neither equal nor refused"
            eager, wide = Loop(case, copy.deepcopy(start), False, False), Loop(case, copy.deepcopy(start), False, True)
            loops += [eager, wide]
            sizes: dict[str, float] = {}
            for number in range(STEPS):
                if number:
                    with warnings.catch_warnings():
                        warnings.simplefilter("error" if case.scheduler else "ignore")
                        warnings.filterwarnings("ignore", message="None of the inputs|.*skipping the first value")
                        try:
                            ours.append((loops[0].run(number), torch.get_rng_state()))
                        except SubletError as error:
                            if not case.moves or number != 2:
                                raise AssertionError(f"{case}: refused at step {number}: {error}") from error
                            return "refused where a fused optimizer would mix layouts"
                right = eager.run(number)
                state = torch.get_rng_state()
                exact = wide.run(number)
                assert torch.equal(ours[number][1], state), f"{case}: step {number}: the generator"
                for mine, theirs, true in zip(*map(_leaves, (ours[number][0], right, exact)), strict=True):
                    _require_near(mine, theirs, true, case, f"{case}: step {number}: a result")
                    assert mine.stride() == theirs.stride(), f"{case}: strides of a result"
                assert loops[0].plain() == eager.plain(), f"{case}: step {number}: {loops[0].plain()} {eager.plain()}"
                found, wanted, true = (loop.tensors() for loop in (loops[0], eager, wide))
                assert found.keys() == wanted.keys(), f"{case}: step {number}: {found.keys() ^ wanted.keys()}"
                for name, each in wanted.items():
                    where = f"{case}: step {number}: {name}"
                    sizes[name] = _require_near(found[name], each, true.get(name), case, where, sizes.get(name, 0.0))
    finally:
        for loop in loops:
            loop.close()
    return "equal"


def _leaves(result: Any) -> list[Any]:
    return [each.detach() for each in torch.utils._pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]


def _epsilon(case: Case) -> float:
    return float(dict(case.options).get("eps", 1e-8 if case.optimizer != "SGD" else 1.0))


def _require_near(mine: Any, theirs: Any, true: Any, case: Case, where: str, before: float = 0.0) -> float:
    """Raise AssertionError unless a tensor is as near to eager's as four times eager's distance from float64.

    A running average keeps the rounding of the larger gradients before: `before` is the largest size in earlier steps.
    Return the largest size so far.
    """
    assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape), f"{where}: {mine.dtype} {theirs.dtype}"
    if not mine.is_floating_point():
        assert torch.equal(mine, theirs), f"{where}: {mine} {theirs}"
        return before
    a, b = mine.double(), theirs.double()
    if not b.isfinite().all():
        assert torch.equal(a.isfinite(), b.isfinite()), f"{where}: finite elsewhere"
        return before
    size = max(before, float(b.abs().max()) if b.numel() else 0.0)
    own = float((b - true.double()).abs().max()) if true is not None and true.isfinite().all() and b.numel() else 0.0
    apart = float((a - b).abs().max()) if b.numel() else 0.0
    least = ROUNDING[case.precision] * max(size, 1e-3) * (1 if _epsilon(case) > 1e-4 else 30)
    assert apart <= 4 * own + least, f"{where}: {apart:.3g} apart, eager is {own:.3g} from float64"
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    tally: Counter[str] = Counter()
    for seed in range(asked.first, asked.first + asked.count):
        try:
            tally[judge(drawn(seed))] += 1
        except AssertionError as error:
            tally["other"] += 1
            print(error, flush=True)
    for verdict, count in tally.items():
        print(f"{count:>8} {verdict}")
    sys.exit(min(tally["other"], 1))


if __name__ == "__main__":
    main()
