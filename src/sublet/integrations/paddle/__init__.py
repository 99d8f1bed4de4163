"""Paddle: reads, plans and rewrites Paddle programs. Paddle's own kernels run the rewritten programs."""

from sublet.integrations.registry import Integration

INTEGRATION = Integration(
    "paddle",
    suffixes=(".pdmodel", ".pb", ".json"),
    file_names=("__model__",),
    read_model="sublet.integrations.paddle.convert.pir:read_file",
    options=("dims", "shape"),
    dialects={"paddle": "sublet.integrations.paddle.operators.dialect:paddle_op"},
    commands={"transpile": "sublet.integrations.paddle.command:transpile_"},
    api="sublet.integrations.paddle.api",
)
