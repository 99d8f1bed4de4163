"""Damaged .tflite files: each is read in bounded memory, or refused in words; a plan in one changes nothing else.

python -m tests.integrations.tflite.hostile --flips 10000
"""

from __future__ import annotations

from sublet.analysis.options import Options
from sublet.base.errors import SubletError
from sublet.integrations.tflite.offline_plan import encode_offsets, offline_plan, with_offline_plan
from sublet.integrations.tflite.plan_offsets import offsets_of_plan
from sublet.integrations.tflite.program import TFLiteProgram, decode
from sublet.integrations.tflite.reader import ALIGNMENT, from_program
from sublet.planning.pipeline import plan_memory
from tests.integrations.onnx.damage import NAME, Format, arguments, tell
from tests.integrations.tflite.generated import streaming
from tests.integrations.tflite.written import branch, chain, counting, loop

LONGEST = 1000
"""Letters of a message: names are cut."""


def used(raw: bytes, program: TFLiteProgram, deep: bool) -> str:
    """What becomes of a program that was read."""
    try:
        model = from_program(program)
        offline_plan(program)
        if deep:
            plan = plan_memory(model, Options(alignment=ALIGNMENT))
            content = encode_offsets(offsets_of_plan(program, plan))
            assert decode(with_offline_plan(raw, NAME, content), "planned").subgraphs == program.subgraphs
    except SubletError as error:
        refusal = str(error)
    else:
        return "read as a model"
    assert len(refusal) < 10 * LONGEST
    return "read, and refused as a model"


def files() -> list[bytes]:
    return [chain(), branch(), loop(), counting(), streaming(1)]


MODELS = Format(files, lambda raw: decode(raw, NAME), used, LONGEST)

if __name__ == "__main__":
    tell(MODELS, arguments(__doc__).parse_args())
