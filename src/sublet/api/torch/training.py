"""Whole training steps of PyTorch's: forward, loss, backward and the optimizer's update as one plan in one arena.

Parameters, buffers and the optimizer's state are used, and updated, where they are: `state_dict` of both stays true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sublet.analysis.options import Options
from sublet.api.binding import equipped
from sublet.api.torch.optimizers import Rule, rule_of
from sublet.api.torch.partition import computed_again
from sublet.base.arrays import Array
from sublet.base.errors import ModelError, RunError, SubletError
from sublet.base.extras import require
from sublet.frontends.torch.conversion import Conversion, Level
from sublet.frontends.torch.devices import device_of, require_cpu
from sublet.frontends.torch.exported import Held, first_line, held, quietly
from sublet.frontends.torch.tensors import Tensor, is_dense, torch
from sublet.frontends.torch.traced import convert_traced, placeholders, results_of
from sublet.ir.graph import Value
from sublet.ir.model import Model
from sublet.nn.training import step_of
from sublet.plan import MemoryPlan
from sublet.planning.pipeline import plan_memory
from sublet.runtime.executable import Executable

Loss = Callable[..., Any]

RATE = "learning rate"


def train_step(module: Any, loss: Loss, optimizer: Any, options: Options | None = None) -> TrainStep:
    """A step of training as one program: `step(x, *targets)` is `loss(module(x), *targets)`, its gradients and the
    update of the optimizer, and gives the loss. Arguments of the module that are several go in a tuple.

    module      whose parameters that require gradients are all the optimizer's; buffers are updated too
    optimizer   torch.optim.SGD, Adam or AdamW; their learning rate may change from step to step
    The step is planned at its first call, and again for other shapes. Raises SubletError, and changes nothing, for what
    cannot be planned.
    """
    return TrainStep(module, loss, optimizer, options or Options())


@dataclass
class _Bound:
    """A step for some shapes: the program, where its inputs go, and which tensors its weights are."""

    run: Executable
    inputs: tuple[str, ...]
    weights: dict[str, Callable[[], Any]]
    addresses: dict[str, int]

    def memory(self, name: str) -> Array:
        """Where the tensor that a weight is lies now."""
        (value,) = (each for each in self.run.graph.weights if each.name == name)
        return Held(self.weights[name](), value.spec.shape).array()  # type: ignore[union-attr]


class TrainStep:
    """See `train_step`. `plan` is that of the step that ran last."""

    def __init__(self, module: Any, loss: Loss, optimizer: Any, options: Options) -> None:
        self._judged = _judged(module, loss)
        self._optimizer, self._rule = optimizer, rule_of(optimizer)
        self._options = options
        self._steps: dict[Any, _Bound] = {}
        self.plan: MemoryPlan | None = None

    def __call__(self, inputs: Any, *targets: Any) -> Any:
        """One step; the loss."""
        given = (*(inputs if isinstance(inputs, tuple) else (inputs,)), *targets)
        key = (self._setting(), *((tuple(each.shape), each.stride(), each.dtype) for each in given))
        if key not in self._steps:
            self._judged.count = len(given) - len(targets)
            with torch().random.fork_rng(devices=[]):  # tracing draws numbers
                self._steps[key] = self._made(given)
        step = self._steps[key]
        self.plan = step.run.plan
        for name, tensor in step.weights.items():
            found = tensor()
            if found.data_ptr() != step.addresses[name]:
                step.run.bind(name, step.memory(name))
                step.addresses[name] = found.data_ptr()
        scalars = self._rule.scalars(self._optimizer)
        places = (step.run.inputs[name].spec.shape for name in step.inputs)  # type: ignore[union-attr]
        contents = (Held(each, shape).array() for each, shape in zip((*given, *scalars), places, strict=True))
        (found,) = step.run(dict(zip(step.inputs, contents, strict=True))).values()
        self._rule.count(self._optimizer)
        return torch().as_tensor(found, device="cpu").clone()

    def _setting(self) -> Any:
        """What a step is planned for besides shapes: who trains, and how; the learning rate is told at each step."""
        modes = tuple(each.training for each in self._judged.network.modules())
        trained = tuple(each.requires_grad for each in self._judged.network.parameters())
        groups = self._optimizer.param_groups
        options = tuple((key, str(group[key])) for group in groups for key in group if key not in ("params", "lr"))
        return modes, trained, options

    def _made(self, given: Sequence[Any]) -> _Bound:
        model, tensors = captured(self._judged, given, self._optimizer, self._rule)
        ready = equipped(step_of(model), backend=["torch", "numpy", "reference"], optimize="none")
        run = ready.bound(plan_memory(ready.model, self._options))
        updated = {value.name for value in run.graph.updated}
        step = _Bound(run, model.inputs, tensors, {name: tensor().data_ptr() for name, tensor in tensors.items()})
        for name in updated & set(tensors):
            run.bind(name, step.memory(name))
        return step


def _judged(module: Any, loss: Loss) -> Any:
    """The module with its loss, as a module."""
    t = torch()
    if not isinstance(module, t.nn.Module):
        raise ModelError(f"{type(module).__name__} is no module of PyTorch's")

    class Judged(t.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = module
            self.count = 1

        @property
        def training(self) -> bool:
            return bool(module.training)

        @training.setter
        def training(self, mode: bool) -> None:
            pass

        def forward(self, *given: Any) -> Any:
            return (loss(self.network(*given[: self.count]), *given[self.count :]),)

    return Judged()


def _traced(judged: Any, given: Sequence[Any]) -> tuple[Any, Any]:
    """Forward and backward as one graph, and what its arguments and results are. Raises ModelError."""
    aot = require("torch._functorch.aot_autograd", extra="torch")
    try:
        with quietly(), torch().enable_grad(), _frozen(_unused(judged, given)):
            found: tuple[Any, Any] = aot.aot_export_module(judged, given, trace_joint=True, output_loss_index=0)
    except SubletError:
        raise
    except Exception as error:  # whatever tracing a program of somebody else's meets
        raise ModelError(f"the step cannot be traced: {first_line(error)}") from error
    return found


def _unused(judged: Any, given: Sequence[Any]) -> list[Any]:
    """The parameters that the loss does not depend on: torch.optim leaves them as they are."""
    t = torch()
    mode = require("torch._subclasses.fake_tensor", extra="torch").FakeTensorMode()
    trained = {name: each for name, each in judged.named_parameters() if each.requires_grad}
    fakes = {name: mode.from_tensor(each) for name, each in (*judged.named_parameters(), *judged.named_buffers())}
    with mode:
        (loss,) = t.func.functional_call(judged, fakes, tuple(map(mode.from_tensor, given)))
        found = t.autograd.grad(loss, [fakes[name] for name in trained], allow_unused=True)
    return [each for each, gradient in zip(trained.values(), found, strict=True) if gradient is None]


@contextmanager
def _frozen(parameters: Sequence[Any]) -> Iterator[None]:
    """While they ask for no gradients."""
    for each in parameters:
        each.requires_grad_(False)
    try:
        yield
    finally:
        for each in parameters:
            each.requires_grad_(True)


def captured(judged: Any, given: Sequence[Any], optimizer: Any, rule: Rule) -> tuple[Model, dict[str, Any]]:
    """The step as a model, and by name of a weight how to find its tensor. Raises ModelError for what has no plan."""
    for tensor in (*judged.parameters(), *judged.buffers(), *given):
        require_cpu(str(tensor.device), "train_step")
    graph, signature = _traced(judged, given)
    require_cpu(device_of(graph), "train_step")
    computed_again(graph, 1 + len(signature.buffers_to_mutate))
    conversion = Conversion(where="step")
    level = conversion.root()
    named = {**dict(judged.named_parameters(remove_duplicate=False)), **dict(judged.named_buffers())}
    homes: dict[str, Tensor] = {}
    tensors: dict[str, Any] = {}
    stands, inputs = [], []
    for node in placeholders(graph):
        name = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}.get(node.name)
        if name is None:
            stands.append(conversion.given(node.name, node.meta["val"]))
            inputs.append(stands[-1].value)
            continue
        if not is_dense(named[name]):
            raise ModelError(f"{name} does not lie in a row, so it cannot be used where it is: make it contiguous")
        same = next((other for other in homes if named[other] is named[name]), None)
        stands.append(homes[same] if same else conversion.weight(name, named[name].detach()))
        homes[name] = stands[-1]
        tensors[stands[-1].value.name] = _found(judged, name)
    results = convert_traced(level, graph, stands)
    names = [node.name for node in results_of(graph)]
    by_name = dict(zip(names, results, strict=True))
    updates = [
        (homes[buffer].value, level.like(by_name[name], homes[buffer]).value)
        for name, buffer in signature.buffers_to_mutate.items()
    ]
    gradients: dict[Any, tuple[Tensor, list[Tensor]]] = {}
    for out, name in signature.backward_signature.gradients_to_parameters.items():
        gradients.setdefault(named[name], (homes[name], []))[1].append(by_name[out])
    scalars = [conversion.given(f"scalar.{i}", each) for i, each in enumerate(rule.scalars(optimizer))]
    inputs += [each.value for each in scalars]
    updates += _updates(level, optimizer, rule, gradients, scalars, tensors)
    loss = level.whole(by_name[signature.user_outputs[0]]).value
    program = level.whole_program(inputs, [loss], updates)
    model = Model(
        program, weights=held(conversion.weights), inputs=tuple(value.name for value in inputs), outputs=("loss",)
    )
    return model, tensors


def _updates(
    level: Level,
    optimizer: Any,
    rule: Rule,
    gradients: Mapping[Any, tuple[Tensor, list[Tensor]]],
    scalars: Sequence[Tensor],
    tensors: dict[str, Any],
) -> list[tuple[Value, Value]]:
    """The parameters and the optimizer's state with their new contents."""
    found: list[tuple[Value, Value]] = []
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if parameter not in gradients:
                continue
            home, several = gradients[parameter]
            state = rule.state(optimizer, parameter)
            homes = [home]
            for key in state:
                homes.append(level.conversion.weight(f"{home.value.name}.{key}", state[key]))
                tensors[homes[-1].value.name] = _state(optimizer, parameter, key)
            own = scalars[number * rule.count_of_scalars : (number + 1) * rule.count_of_scalars]
            traced = rule.traced(group, parameter, list(state.values()), len(several))
            news = convert_traced(level, traced, [*homes, *own, *several])
            found += [(old.value, level.like(new, old).value) for old, new in zip(homes, news, strict=True)]
    missing = [each for each in gradients if not any(each is p for g in optimizer.param_groups for p in g["params"])]
    if missing:
        raise RunError(f"{len(missing)} parameters that require gradients are not the optimizer's")
    return found


def _found(judged: Any, name: str) -> Callable[[], Any]:
    """Looks a parameter or buffer up, which may be another tensor than it was."""
    path, _, last = name.rpartition(".")
    return lambda: getattr(judged.get_submodule(path), last).detach()


def _state(optimizer: Any, parameter: Any, key: str) -> Callable[[], Any]:
    return lambda: optimizer.state[parameter][key]
