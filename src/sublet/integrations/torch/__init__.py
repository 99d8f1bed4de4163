"""PyTorch: readers of programs, facts and kernels of ATen, `torch.compile`, whole training steps, and snapshots."""

from sublet.integrations.registry import Integration

INTEGRATION = Integration(
    "torch",
    suffixes=(".pt2",),
    read_model="sublet.integrations.torch.reader.pt2_archive:read_file",
    problem_suffixes=(".pickle", ".pkl"),
    problem_json="sublet.integrations.torch.snapshot:is_snapshot_json",
    read_problem="sublet.integrations.torch.snapshot:read_problem",
    dialects={
        "aten": "sublet.integrations.torch.dialect:aten_op",
        "_c10d_functional": "sublet.integrations.torch.dialect:collective_op",
        "joined": "sublet.integrations.torch.dialect:fused_op",
    },
    backends={"torch": "sublet.integrations.torch.kernels.backend:backend_for"},
    packages={"torch": "torch"},
    commands={
        "plan --ranks": "sublet.integrations.torch.commands:show_ranks",
        "plan --train": "sublet.integrations.torch.commands:show_step",
        "check .json": "sublet.integrations.torch.commands:replay_snapshot",
        "check .pickle": "sublet.integrations.torch.commands:replay_snapshot",
        "check .pkl": "sublet.integrations.torch.commands:replay_snapshot",
    },
    remark="sublet.integrations.torch.operator_facts:installed_remark",
    api="sublet.integrations.torch.api",
)
