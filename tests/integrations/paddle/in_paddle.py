"""Makes random programs with Paddle, and runs many programs in one process: a script for the Python that has Paddle.

    python in_paddle.py make FOLDER FIRST COUNT     FIRST.pb, FIRST.start.pb, FIRST.npz, FIRST.json and so on
    python in_paddle.py run FOLDER SECONDS          runs every *.pb beside its start and feeds, writes answers.json

It imports nothing of Sublet. A program is a training step or not; it has loops in loops, branches, names that are
assigned more than once, arrays, shared weights.
"""

import hashlib
import json
import os
import random
import resource
import signal
import sys
from pathlib import Path

os.environ.setdefault("FLAGS_enable_pir_api", "0")  # read by Paddle while it is imported

import numpy as np
import paddle

ROWS = 4
STEPS = 3
WAITING, BYTES = 120, 1 << 30
"""Seconds in all, and bytes more than before, that a program may take: all take far less."""
ENDED = {signal.SIGPROF: "too much computing", signal.SIGALRM: "too long"}
"""What a signal says that ended a process; any other is a crash."""
TOO_MUCH = "too much memory"
UNARY = ("tanh", "sigmoid", "relu", "square", "exp_small", "softmax", "scale", "reshape", "transpose")
BINARY = ("add", "subtract", "multiply")


class Writer:
    """Writes one random program; every value is a matrix of ROWS by `width`."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.width = self.rng.choice([4, 8])
        self.left = self.rng.randint(4, 28)
        self.weights = []

    def weight(self):
        if not self.weights or self.rng.random() < 0.5:
            drawn = paddle.nn.initializer.Uniform(-0.5, 0.5)
            self.weights.append(paddle.create_parameter([self.width] * 2, "float32", default_initializer=drawn))
        return self.rng.choice(self.weights)

    def values(self, scope, depth):
        """The scope, with some values more."""
        scope = list(scope)
        for _ in range(self.rng.randint(1, 6)):
            if self.left > 0:
                self.left -= 1
                scope.append(self.statement(scope, depth))
        return scope

    def pick(self, scope):
        return scope[-1 - min(int(self.rng.expovariate(0.4)), len(scope) - 1)]

    def statement(self, scope, depth):
        kinds = [self.unary, self.unary, self.binary, self.binary, self.linear, self.parts]
        if depth < 2:
            kinds += [self.loop, self.branch, self.stack]
        return self.rng.choice(kinds)(scope, depth)

    def unary(self, scope, depth):
        x, kind = self.pick(scope), self.rng.choice(UNARY)
        if kind == "exp_small":
            return paddle.exp(paddle.tanh(x))
        if kind == "softmax":
            return paddle.nn.functional.softmax(x)
        if kind == "scale":
            return paddle.scale(x, 0.5, bias=self.rng.choice([0.0, 0.25]))
        if kind == "reshape":
            return paddle.reshape(paddle.reshape(x, [ROWS * self.width]), [ROWS, self.width])
        if kind == "transpose":
            return paddle.transpose(paddle.transpose(x, [1, 0]), [1, 0])
        return getattr(paddle, kind, None)(x) if hasattr(paddle, kind) else getattr(paddle.nn.functional, kind)(x)

    def binary(self, scope, depth):
        return getattr(paddle, self.rng.choice(BINARY))(self.pick(scope), self.pick(scope))

    def linear(self, scope, depth):
        return paddle.matmul(self.pick(scope), self.weight()) * 0.5

    def parts(self, scope, depth):
        one, other = paddle.split(self.pick(scope), 2, axis=1)
        return paddle.concat([other, one] if self.rng.random() < 0.5 else [paddle.tanh(one), other], axis=1)

    def branch(self, scope, depth):
        """Two ways, chosen by a value."""
        condition = paddle.mean(self.pick(scope)) > self.rng.choice([-0.5, 0.0, 0.5])
        return paddle.static.nn.cond(
            condition,
            lambda: self.end(self.values(scope, depth + 1)),
            lambda: self.end(self.values(scope, depth + 1)),
        )

    def end(self, scope):
        """The last value; never one of around the branch itself."""
        return paddle.scale(scope[-1], 1.0)

    def loop(self, scope, depth):
        """Some rounds of a loop that carries one to three values, swapped now and then."""
        count = self.rng.randint(1, 3)
        start, end = paddle.full([1], 0, "int64"), paddle.full([1], self.rng.randint(0, 3), "int64")
        carried = [paddle.scale(self.pick(scope), 1.0) for _ in range(count)]

        def body(i, *inner):
            made = self.values([*scope, *inner], depth + 1)
            updates = [paddle.tanh(self.pick(made)) if self.rng.random() < 0.7 else value for value in inner]
            self.rng.shuffle(updates)
            return [i + 1, *updates]

        return paddle.static.nn.while_loop(lambda i, *_: paddle.less_than(i, end), body, [start, *carried])[1]

    def stack(self, scope, depth):
        """An array that is written twice, once over what is there, and read."""
        zero, one = paddle.full([1], 0, "int64"), paddle.full([1], 1, "int64")
        array = paddle.tensor.array_write(self.pick(scope), zero)
        paddle.tensor.array_write(paddle.tanh(self.pick(scope)), one, array=array)
        return paddle.add(paddle.tensor.array_read(array, one), paddle.tensor.array_read(array, zero))


def made(seed):
    """A program and its startup program, or None where Paddle cannot build what was drawn."""
    main, start = paddle.static.Program(), paddle.static.Program()
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(main, start):
        writer = Writer(seed)
        x = paddle.static.data("x", [ROWS, writer.width])
        scope = writer.values([x], 0)
        again = paddle.assign(scope[-1])
        paddle.assign(paddle.tanh(writer.pick(scope)) + again, output=again)  # a name assigned twice
        loss = paddle.mean(paddle.matmul(writer.end([*scope, again]), writer.weight()))
        if writer.rng.random() < 0.85:
            kinds = [paddle.optimizer.SGD, paddle.optimizer.Momentum, paddle.optimizer.Adam]
            writer.rng.choice(kinds)(0.05).minimize(loss)
    return main, start, loss.name, writer.width


def make(folder, first, count):
    told = {}
    for seed in range(first, first + count):
        try:
            main, start, loss, width = made(seed)
        except Exception as error:  # what Paddle cannot build is no program
            told[type(error).__name__] = told.get(type(error).__name__, 0) + 1
            continue
        (folder / f"{seed}.pb").write_bytes(main.desc.serialize_to_string())
        (folder / f"{seed}.start.pb").write_bytes(start.desc.serialize_to_string())
        drawn = np.random.default_rng(seed)
        np.savez(
            folder / f"{seed}.npz", **{str(i): drawn.normal(size=(ROWS, width)).astype("float32") for i in range(STEPS)}
        )
        (folder / f"{seed}.json").write_text(json.dumps({"loss": loss}))
    print(json.dumps({"could not be built": told}))


def run_one(program, start, feeds, loss):
    """The bits of the losses and of all that persists."""
    framework, scope = paddle.base.framework, paddle.base.core.Scope()
    main = framework.Program.parse_from_string(program)
    begin = framework.Program.parse_from_string(start)
    paddle.seed(7)
    begin.random_seed = 7
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(scope):
        executor.run(begin)
        losses = [executor.run(main, feed={"x": feed}, fetch_list=[loss])[0] for feed in feeds]
        digest = hashlib.sha256()
        for name in sorted(var.name for var in main.list_vars() if var.persistable):
            held = scope.find_var(name)
            if held is not None and held.get_tensor()._is_initialized():
                digest.update(name.encode() + np.array(held.get_tensor()).tobytes())
    return [np.asarray(value).tobytes().hex() for value in losses], digest.hexdigest()


def limit(computing):
    """The limits for one program. Those of time end the process; that of bytes is told in Paddle's own way."""
    signal.setitimer(signal.ITIMER_PROF, computing)
    signal.setitimer(signal.ITIMER_REAL, WAITING)
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    bytes_now = int(status["VmData"].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (bytes_now + BYTES, resource.RLIM_INFINITY))


def answer(folder, path, computing):
    """What a program computes, or why it does not."""
    seed = path.name.split(".")[0]
    with np.load(folder / f"{seed}.npz") as arrays:
        feeds = [arrays[key] for key in sorted(arrays.files)]
    loss = json.loads((folder / f"{seed}.json").read_text())["loss"]
    limit(computing)
    try:
        return run_one(path.read_bytes(), (folder / f"{seed}.start.pb").read_bytes(), feeds, loss)
    except Exception as error:
        full = isinstance(error, MemoryError) or "ResourceExhausted" in str(error)
        return [TOO_MUCH, ""] if full else [type(error).__name__, str(error)[-400:]]


def run(folder, computing):
    """Run what is not yet answered, each in a process of its own: what takes that down has this for an answer."""
    written, passed = folder / "answers.json", folder / "answer.json"
    answers = json.loads(written.read_text()) if written.exists() else {}
    for path in sorted(folder.glob("*.pb")):
        if path.name.endswith(".start.pb") or path.name in answers:
            continue
        child = os.fork()
        if child == 0:
            passed.write_text(json.dumps(answer(folder, path, computing)))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        ended = ENDED.get(os.WTERMSIG(status), "crash") if status else ""
        answers[path.name] = [ended, str(status)] if status else json.loads(passed.read_text())
    written.write_text(json.dumps(answers))


if __name__ == "__main__":
    paddle.enable_static()
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        run(Path(sys.argv[2]), int(sys.argv[3]))
