"""Runs a model in Paddle's predictor: a script for the Python that has Paddle.

    python predicting.py PROGRAM WEIGHTS EXTENT... [--optim]      prints JSON: bytes held, and a hash of the outputs

Neither fuses operators, so that both compute the same; `--optim` is Paddle's own memory optimization.
"""

import hashlib
import json
import sys

import numpy as np
import paddle
from paddle import inference

RUNS = 3
program, weights, *shape = (each for each in sys.argv[1:] if each != "--optim")
config = inference.Config(program, weights)
config.disable_gpu()
config.switch_ir_optim(False)
config.disable_glog_info()
if "--optim" in sys.argv:
    config.enable_memory_optim()
else:
    config.disable_memory_optim() if hasattr(config, "disable_memory_optim") else None
predictor = inference.create_predictor(config)
drawn = np.random.RandomState(7)
seen = hashlib.sha256()
for _ in range(RUNS):
    (name,) = predictor.get_input_names()
    picture = drawn.standard_normal([int(extent) for extent in shape]).astype("float32")
    predictor.get_input_handle(name).copy_from_cpu(picture)
    predictor.run()
    for output in predictor.get_output_names():
        seen.update(predictor.get_output_handle(output).copy_to_cpu().tobytes())
held = paddle.base.core.host_memory_stat_current_value("Allocated", 0)
print(json.dumps({"held": held, "outputs": seen.hexdigest()}))
