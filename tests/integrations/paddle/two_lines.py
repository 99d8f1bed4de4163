"""The two lines in Paddle: a program is built, transpiled and trained there, beside what it was.

    PYTHON two_lines.py [SITE-PACKAGES]     prints a line of JSON

It runs in the Python that has Paddle. What that lacks of Sublet is taken from a folder of another Python.
"""

import json
import os
import site
import sys

os.environ.update(FLAGS_enable_pir_api="0", GLOG_minloglevel="3")  # read by Paddle while it is imported

import numpy as np
import paddle

for folder in sys.argv[1:]:
    site.addsitedir(folder)  # after this Python's own, so that Paddle has the numpy it came with

import sublet  # noqa: E402

STEPS, WIDTH = 10, 16


def built():
    """Two layers and a branch, trained by Adam: the program, its startup program and the loss."""
    program, startup = paddle.static.Program(), paddle.static.Program()
    program.random_seed = startup.random_seed = 7
    with paddle.static.program_guard(program, startup):
        x = paddle.static.data("x", [8, WIDTH])
        y = paddle.static.data("y", [8, 1])
        hidden = paddle.nn.functional.relu(paddle.static.nn.fc(x, 4 * WIDTH))
        hidden = paddle.static.nn.cond(
            paddle.mean(x) > 0, lambda: paddle.tanh(hidden), lambda: paddle.nn.functional.sigmoid(hidden)
        )
        loss = paddle.mean(paddle.square(paddle.static.nn.fc(hidden, 1) - y))
        paddle.optimizer.Adam(1e-2).minimize(loss)
    return program, startup, loss


def trained(program, startup, loss):
    scope, executor, random = paddle.static.Scope(), paddle.static.Executor(paddle.CPUPlace()), np.random.RandomState(3)
    losses = []
    with paddle.static.scope_guard(scope):
        executor.run(startup)
        for _ in range(STEPS):
            feed = {name: random.randn(8, width).astype("float32") for name, width in (("x", WIDTH), ("y", 1))}
            (value,) = executor.run(program, feed=feed, fetch_list=[loss])
            losses.append(float(value).hex())
    return losses


def main():
    paddle.enable_static()
    program, startup, loss = built()
    before = program.desc.serialize_to_string()
    small = sublet.paddle.transpile(program, skip_opt_set=[loss])
    told = {
        "kind": type(small) is paddle.static.Program,
        "untouched": program.desc.serialize_to_string() == before,
        "rewritten": small.desc.serialize_to_string() != before,
        "losses": [trained(each, startup, loss) for each in (program, small)],
    }
    print(json.dumps(told))


main()
