"""The pages of the gallery: the commands that draw plans of the models in docs/gallery_models.py.

mkdocs calls `plan_pages` through docs/site_pages.py. Each page is made by the command shown above the picture.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path

from typer.main import get_command

from docs.gallery_models import write_models
from sublet.cli import app as commands


@dataclass(frozen=True)
class Exhibit:
    """A plan of the gallery: commands, the last with `--html`; the exit status of the last; what to look at."""

    name: str
    title: str
    commands: tuple[str, ...]
    text: str
    status: int = 0


EXHIBITS = (
    Exhibit(
        "resnet50", "ResNet-50", ("plan resnet50.onnx",),
        "The arena falls in four steps, as the maps halve from stage to stage. "
        "Each block of two tall bars is a residual connection: the input waits for the addition. "
        "Click a bar: the page marks the tensors in the same bytes, written one over the other.",
    ),
    Exhibit(
        "unet", "U-Net", ("plan unet.onnx",),
        "The long bars at the bottom are skip connections from the encoder to the decoder. "
        "The peak lies at the last, widest stage of the decoder. "
        "Search for `Concat`: the operands lie inside the result, so that a concatenation moves no byte.",
    ),
    Exhibit(
        "mobilenet_patches", "MobileNetV2 in patches", ("plan mobilenet_v2.onnx --patches auto",),
        "The front of the network runs patch by patch, each from its receptive field. "
        "The comb at the bottom shows the patches: the same few bytes serve all patches in turn. "
        "The image stays live until the last patch; the first wide map never exists as a whole.",
    ),
    Exhibit(
        "two_memories", "MobileNetV2 in two memories",
        ("plan mobilenet_v2.onnx --region sram=256KiB --region dram=8MiB",),
        "Two arenas lie one above the other: the fast memory of 256 KiB below, the slow memory above. "
        "Small and often used tensors lie in the fast memory. "
        "The wide maps of the front do not fit there, and lie in the slow memory.",
    ),
    Exhibit(
        "gpt2_100", "A training step of GPT-2", ("plan gpt2_step.sublet",),
        "The live bytes rise in the forward pass and fall in the backward pass. "
        "Long bars are activations that wait for their gradients. "
        "The strip below the map names the blocks of the network, then the nodes of the gradients.",
    ),
    Exhibit(
        "gpt2_50", "The same step in half of the arena", ("plan gpt2_step.sublet --budget 594K --recompute",),
        "The dotted line is the budget. "
        "Some long bars are gone: the backward pass computes the values a second time, shortly before their use. "
        "The live bytes stay near the budget for longer.",
    ),
    Exhibit(
        "gpt2_20", "The same step in a fifth of the arena", ("plan gpt2_step.sublet --budget 238K --recompute",),
        "Few tensors wait for the backward pass. "
        "Tensors with `again` in their names are computed a second time, right before their gradients. "
        "The map is twice as long as the map of the plain step: bytes are paid for with time.",
    ),
    Exhibit(
        "lstm", "A loop of an LSTM", ("plan lstm.onnx --max-trips 16",),
        "The loop body appears once for each version: the state alternates between places, and no copy is needed. "
        "The rows of the stacked output fill one long bar from iteration to iteration. "
        "The button *Fold loops* shows the body once.",
    ),
    Exhibit(
        "nested_loops", "Nested loops", ("plan nested.sublet",),
        "Both loops swap their two values in every iteration. "
        "Each version of the outer body holds versions of the inner body, drawn as bands below the map. "
        "Hover over a band to read how many iterations run in a version.",
    ),
    Exhibit(
        "order", "Another order of a network with branches",
        (
            "plan branches.onnx --out given.json", "plan branches.onnx --order less --out less.json",
            "show given.json less.json",
        ),
        "The lower map runs the four branches layer by layer: four tall bars live at the same time. "
        "The upper map runs one branch after another, in a third of the arena. "
        "Both plans compute the same numbers.",
    ),
    Exhibit(
        "rewritten", "ResNet-50 before and after ONNX Runtime's optimiser",
        (
            "plan resnet50.onnx --out file.json", "plan resnet50.onnx --optimize onnxruntime --out rewritten.json",
            "show file.json rewritten.json",
        ),
        "The lower map is the plan of the file, the upper map the plan of the rewritten graph. "
        "The optimiser joins convolutions with normalisations, activations and additions: the upper map is shorter. "
        "The arena shrinks, because a joined node needs no tensor between its parts.",
    ),
    Exhibit(
        "executorch", "A plan of ExecuTorch, refused", ("check nested.pte",),
        "The heading says that the plan is wrong: the program overwrites a tensor that a later instruction reads. "
        "`sublet check` names the step, both tensors and the bytes. "
        "Look for the two bars on the same bytes at the same time.",
        status=1,
    ),
    Exhibit(
        "tflm", "A plan of TensorFlow Lite Micro beside ours",
        ("plan network.tflite --out sublet.json", "show tflm.json sublet.json"),
        "The lower map places the largest tensor first and no output over an input: the rule of TFLM. "
        "The upper map writes outputs over inputs, and needs 40 % fewer bytes for the same network. "
        "Click a bar of the upper map: the page marks the outputs in the bytes of the input.",
    ),
    Exhibit(
        "paddle", "A translation in Paddle, before and after", ("check translation.json",),
        "The lower map is a training step as written: 30 iterations of two loops keep their tensors for the gradients. "
        "The upper map is the step rewritten by `sublet transpile`: the iterations keep a fifth of the bytes. "
        "Both maps have the executor's own order, and the results are equal bit for bit.",
    ),
    Exhibit(
        "snapshot", "A snapshot of PyTorch beside its plan", ("check snapshot_beside_plan.json",),
        "The lower map shows two training steps of a transformer at the addresses of PyTorch's allocator, on a GPU. "
        "The upper map packs the same allocations with the same lifetimes into one arena. "
        "The white gaps of the lower map are memory reserved for blocks of other sizes.",
    ),
)  # fmt: skip


def plan_pages() -> dict[str, str]:
    """Return the page of each exhibit, by name. Raises AssertionError for an unexpected exit status."""
    pages, here = {}, Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        try:
            write_models(folder)
            for exhibit in EXHIBITS:
                for i, command in enumerate(exhibit.commands, 1):
                    last = i == len(exhibit.commands)
                    status = run_command(f"{command} --html page.html" if last else command)
                    assert status == (exhibit.status if last else 0), f"sublet {command}: exit status {status}"
                pages[exhibit.name] = (folder / "page.html").read_text(encoding="utf-8")
        finally:
            os.chdir(here)
    return pages


def run_command(command: str) -> int:
    """Run a command of `sublet` in this process, without its output, and return the exit status."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            return get_command(commands.app)(shlex.split(command), standalone_mode=False) or 0
        except SystemExit as end:
            return int(end.code or 0)


def gallery_markdown() -> str:
    """Return the page that shows all exhibits."""
    parts = [
        "# Gallery",
        "Fifteen plans as live pages: click a bar, search a tensor, zoom with the wheel. Each picture comes from the "
        "command above the picture, made with this version of Sublet when the site was built. The script "
        "`docs/gallery_models.py` writes all models, and the memory of other tools as JSON.",
    ]
    for exhibit in EXHIBITS:
        *before, last = exhibit.commands
        lines = [f"sublet {command}" for command in (*before, f"{last} --html {exhibit.name}.html")]
        parts += [
            f"## {exhibit.title}",
            exhibit.text,
            "\n".join(("```bash", *lines, "```")),
            f"[Open the page](gallery/{exhibit.name}.html){{ .md-button }}",
            f'<iframe class="plan" src="gallery/{exhibit.name}.html" title="{exhibit.title}" loading="lazy"></iframe>',
        ]
    return "\n\n".join(parts) + "\n"
