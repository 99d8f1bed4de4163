"""The inputs and outputs of a `.pt2` program: weights, the user's inputs, results, updated weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.optional_imports import require
from sublet.frontends.torch.pt2_tensors import Payload
from sublet.frontends.torch.traced_tensor import torch


class Pt2Weights:
    """The weights of a program, renamed to `weight_0`, `weight_1`, ...

    own_names  Sublet's names by the names in the file
    state      parameters and persistent buffers by Sublet's name
    constants  non-persistent buffers and tensor constants by Sublet's name
    """

    def __init__(self, where: str, payloads: Mapping[str, Payload]) -> None:
        self.where, self.payloads = where, payloads
        self.own_names: dict[str, str] = {}
        self.state: dict[str, Any] = {}
        self.constants: dict[str, Any] = {}

    @property
    def names(self) -> Mapping[str, str]:
        """The names in the file by Sublet's names."""
        return {own: name for name, own in self.own_names.items()}

    def own_name(self, name: str) -> str:
        """Return Sublet's name of a weight. Raises ModelError for an updated weight missing among the inputs."""
        if name not in self.own_names:
            raise ModelError(f"{self.where}: the weight {name[:80]!r} is changed, and is no input of the program")
        return self.own_names[name]

    def add_weight(self, name: str, into: dict[str, Any]) -> str:
        """Add a weight to `into`, and return Sublet's name. Raises ModelError for a weight without content."""
        if name not in self.payloads:
            raise ModelError(f"{self.where}: the content of the weight {name[:80]!r} is missing")
        own = self.own_names.setdefault(name, f"weight_{len(self.own_names)}")
        payload = self.payloads[name]
        parameter = (
            torch().nn.Parameter(payload.tensor, requires_grad=False) if payload.is_parameter else payload.tensor
        )
        into[own] = parameter
        return own

    def input_spec(self, record: Mapping[str, Any], node: Any) -> Any:
        """Return the InputSpec of an input of the program."""
        signature = torch().export.graph_signature
        ((kind, spec),) = record.items()
        kinds, argument = signature.InputKind, signature.TensorArgument(node.name)
        if kind == "parameter":
            return signature.InputSpec(kinds.PARAMETER, argument, self.add_weight(spec["parameter_name"], self.state))
        if kind == "buffer":
            into = self.state if spec["persistent"] else self.constants
            return signature.InputSpec(
                kinds.BUFFER, argument, self.add_weight(spec["buffer_name"], into), spec["persistent"]
            )
        if kind == "tensor_constant":
            name = self.add_weight(spec["tensor_constant_name"], self.constants)
            return signature.InputSpec(kinds.CONSTANT_TENSOR, argument, name)
        if kind == "constant_input":
            argument = signature.ConstantArgument(node.name, node.meta["val"])
        return signature.InputSpec(kinds.USER_INPUT, argument, None)

    def output_spec(self, record: Mapping[str, Any], result: Any, nodes: Mapping[str, Any]) -> Any:
        """Return the OutputSpec of a result of the program. `nodes` holds the nodes by the names in the file.

        Raises ModelError for an update of a missing input or weight.
        """
        signature = torch().export.graph_signature
        ((kind, spec),) = record.items()
        kinds = signature.OutputKind
        is_node = isinstance(result, torch().fx.Node)
        argument = signature.TensorArgument(result.name) if is_node else signature.ConstantArgument("", result)
        if kind == "user_output":
            return signature.OutputSpec(kinds.USER_OUTPUT, argument, None)
        if kind == "user_input_mutation":
            if spec["user_input_name"] not in nodes:
                raise ModelError(f"{self.where}: the input {spec['user_input_name'][:80]!r} is changed, and is none")
            return signature.OutputSpec(kinds.USER_INPUT_MUTATION, argument, nodes[spec["user_input_name"]].name)
        if kind == "buffer_mutation":
            return signature.OutputSpec(kinds.BUFFER_MUTATION, argument, self.own_name(spec["buffer_name"]))
        return signature.OutputSpec(kinds.PARAMETER_MUTATION, argument, self.own_name(spec["parameter_name"]))


def call_signature(inputs: int, outputs: int) -> Any:
    """Return the signature of the program's call: a tuple of inputs in, a tuple of outputs out."""
    pytree = require("torch.utils._pytree", extra="torch")
    exported = require("torch.export", extra="torch")
    given = pytree.tree_structure(((0,) * inputs, {}))
    results = pytree.tree_structure((0,) * outputs)
    call = exported.ModuleCallSignature(inputs=[], outputs=[], in_spec=given, out_spec=results)
    return exported.ModuleCallEntry("", call)
