"""Runs in Paddle's own interpreter, and imports nothing of Sublet: tries every op of some programs by itself.

    python trials.py DONE PROGRAM...        prints a line of JSON for each use; not of the ops DONE (a,b,c)

Each distinct use of an op (its attributes, types and shapes), and variants of it (`variants.py`), becomes a program of
one op. What a gradient is given in a variant, its forward op computes. The result, with every
tensor in memory of its own, is what all other runs are compared with, bit for bit:

    names    an output under the name of an input of as many bytes (in-place, by name)
    places   input and output as two views at one offset of an arena (in-place, by address)
    arena    every tensor a view at an offset of its own: whoever compares allocations takes this for in-place
    poison   an input's content replaced, by NaN and by other numbers: whoever reads only the shape is not touched

Runs are in forks of this process, so that one that crashes or corrupts memory is a plain no.
"""

import io
import itertools
import json
import os
import pickle
import signal
import sys

os.environ.update(FLAGS_enable_pir_api="0", FLAGS_new_executor_sequential_run="1", FLAGS_eager_delete_tensor_gb="-1")
os.environ.update(GLOG_minloglevel="3", GLOG_v="0", OMP_NUM_THREADS="1", FLAGS_new_executor_serial_run="1")

import numpy as np
import paddle
from uses import TYPES, UINT8, Use, add, content, describe, framework, proto, put, uses
from variants import MOST, variants

paddle.enable_static()
ALIGN, SECONDS, FORMS = 64, 120, 4
UNTOUCHED = b"\xff"


class Run:
    """One run of a use: names may be exchanged, tensors may lie in an arena at offsets."""

    def __init__(self, use, contents, renamed=None, places=None, room=0):
        self.use, self.renamed, self.places = use, renamed or {}, places or {}
        self.program = proto.ProgramDesc()
        self.program.version.version = 0
        block = self.program.blocks.add()
        block.idx, block.parent_idx = 0, -1
        self.scope = paddle.static.Scope() if hasattr(paddle.static, "Scope") else framework.core.Scope()
        for name in use.read + use.written:
            if self.renamed.get(name, name) == name:
                describe(block, name, *use.types[name])
        if self.places:
            describe(block, "ARENA", UINT8, (room,))
            self.give("ARENA", np.full(room, 255, "uint8"))
            for name, (offset, size) in self.places.items():
                add(block, "view_slice", {"input": "ARENA"}, {"out": name}, begin_idx=offset, end_idx=offset + size)
        for name, value in contents.items():
            if name in self.places:
                describe(block, name + "@IN", *use.types[name])
                self.give(name + "@IN", value)
                add(block, "assign", {"X": name + "@IN"}, {"Out": name})
            else:
                self.give(name, value)
        op = block.ops.add()
        op.CopyFrom(use.op)
        for slot in itertools.chain(op.inputs, op.outputs):
            slot.arguments[:] = [self.renamed.get(name, name) for name in slot.arguments]
        for attr in [a for a in op.attrs if a.name in ("op_callstack", "op_role_var")]:
            op.attrs.remove(attr)

    def give(self, name, value):
        tensor = self.scope.var(name).get_tensor()
        tensor.set(value, paddle.CPUPlace())
        if name.partition("@IN")[0] in self.use.lods:
            tensor.set_recursive_sequence_lengths([[1, len(value) - 1]])

    def prefill(self, name, size):
        """Memory of so many bytes, all of them set."""
        self.scope.var(name).get_tensor().set(np.full(size, 255, "uint8"), paddle.CPUPlace())

    def run(self):
        program = framework.Program.parse_from_string(self.program.SerializeToString())
        paddle.seed(7)
        program.random_seed = 7
        paddle.static.Executor(paddle.CPUPlace()).run(program, scope=self.scope)
        return self

    def tensor(self, name):
        return self.scope.find_var(self.renamed.get(name, name)).get_tensor()

    def bits(self, name):
        tensor = self.tensor(name)
        return np.array(tensor).tobytes() if tensor._is_initialized() else b""

    def offset(self, name):
        return self.tensor(name)._ptr() - self.tensor("ARENA")._ptr()


def apart_from_this_process(works):
    """What each of `works` gives, computed in a fork: (None, why) for one that dies, hangs or raises.

    One that dies takes its process with it, and the others go on in another. Paddle takes longer to fork than to run.
    """
    given = []
    while len(given) < len(works):
        given += in_a_fork(works[len(given) :])
        if len(given) < len(works):
            given.append((None, "crashes Paddle"))
    return given


def in_a_fork(works):
    """What these give one after another, until one dies."""
    source, sink = os.pipe()
    child = os.fork()
    if not child:
        os.close(source)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGBUS, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        with os.fdopen(sink, "wb") as file:
            for work in works:
                signal.alarm(SECONDS)
                try:
                    told = work(), ""
                except Exception as error:
                    told = None, " ".join(str(error).split())[-300:]
                pickle.dump(told, file)
                file.flush()
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as file:
        content = io.BytesIO(file.read())
    os.waitpid(child, 0)
    given = []
    try:
        while True:
            given.append(pickle.load(content))
    except (EOFError, pickle.UnpicklingError):  # it is over, or died while it wrote
        return given


class Trial:
    """What one use tells."""

    def __init__(self, use, contents):
        self.use, self.contents = use, contents
        self.told, self.asked = {}, None

    def begin(self, first, why):
        """Go on from the use by itself: it must give the same again, also into memory that is not as it was."""
        if first is None:
            raise ValueError(why)
        self.wanted, self.pointers, actual = first
        self.use.types.update((n, (self.use.types[n][0], dims)) for n, dims in actual.items() if n in self.use.written)
        before = {name: len(self.wanted[name]) for name in self.use.written if self.wanted[name]}
        (second, _), (filled, _) = apart_from_this_process([self.alone, lambda: self.alone(before)])
        if second is None or filled is None:
            raise ValueError("differs from run to run")
        for name, size in before.items():
            if filled[0][name] == UNTOUCHED * size:  # allocated and never written: what lies there is no result
                self.wanted[name] = b""
            elif not self.wanted[name] == second[0][name] == filled[0][name]:
                raise ValueError("differs from run to run")
        self.sizes = {name: len(bits) for name, bits in self.wanted.items()}
        self.sizes.update({name: value.nbytes for name, value in self.contents.items()})

    def alone(self, before=None):
        """The bits of every output, and where each tensor lies; `before` is what is there already."""
        run = Run(self.use, self.contents)
        for name, size in (before or {}).items():
            run.prefill(name, size)
        run.run()
        wanted = {name: run.bits(name) for _, _, name in self.use.outputs}
        filled = [name for name in {**wanted, **self.contents} if wanted.get(name, b"-")]
        dims = {name: tuple(run.tensor(name).shape()) for name in filled}
        return wanted, {name: run.tensor(name)._ptr() for name in filled if np.prod(dims[name])}, dims

    def attempt(self, contents=None, renamed=None, places=None, room=0):
        """Whether a run gives what the first gave, and at which offsets of the arena tensors lie then."""
        key = pickle.dumps((contents, renamed, places))
        if self.asked is not None:
            self.asked[key] = lambda: self.seen(contents, renamed, places, room)
            return True, {name: offset for name, (offset, _) in (places or {}).items()}
        return self.told[key]

    def ask_at_once(self, arena):
        """Make all attempts, one after another in one process. What one that is wrong leaves behind can make another
        wrong, but not right."""
        self.asked = {}
        self.answers(arena)
        questions, self.asked = self.asked, None
        given = apart_from_this_process(list(questions.values()))
        self.told = {key: answer or (False, {}) for key, (answer, _) in zip(questions, given)}  # noqa: B905

    def seen(self, contents, renamed, places, room):
        run = Run(self.use, contents or self.contents, renamed, places, room).run()
        good = all(run.bits(name) == bits for name, bits in self.wanted.items() if bits)
        return good, {name: run.offset(name) for name in places or ()}

    def layout(self, apart=()):
        """Every tensor at an offset of its own; `apart` is a pair that shares one."""
        places, at = {}, ALIGN
        for name in self.sizes:
            updated = name in self.use.read and name in self.wanted  # a parameter, which is never planned
            if self.sizes[name] and name not in apart[1:] and not updated:
                places[name] = (at, self.sizes[name])
                at += -(-self.sizes[name] // ALIGN) * ALIGN + ALIGN
        if apart:
            places[apart[1]] = places[apart[0]]
        return places, at + ALIGN

    def shape_only(self):
        """Slots of inputs whose content may be anything."""
        slots = {}
        for slot, _, name in self.use.inputs:
            slots.setdefault(slot, set()).add(name)
        for slot, names in slots.items():
            elsewhere = {name for other, _, name in self.use.inputs if other != slot}
            elsewhere |= {name for _, _, name in self.use.outputs}
            if names & elsewhere or not any(self.sizes[name] for name in names):
                continue
            yield slot, all(self.poisoned(names, value)[0] for value in (np.nan, 0.7, 0))

    def poisoned(self, names, value):
        contents = dict(self.contents)
        for name in names:
            old = contents[name]
            floats = old.dtype.kind == "f"
            contents[name] = np.full_like(old, value) if floats else (old == 0).astype(old.dtype) * int(value != 0)
        return self.attempt(contents)

    def pairs(self, arena):
        """(input slot, position, output slot, by name, by address, equal bits) of all that could be in-place."""
        taken = {name for _, _, name in self.use.inputs} & {name for _, _, name in self.use.outputs}
        for (source, k, name), (target, _, out) in itertools.product(self.use.inputs, self.use.outputs):
            once = [n for _, _, n in self.use.inputs].count(name) == 1
            if name in taken or out in taken or not once or not self.sizes[out] or self.sizes[name] != self.sizes[out]:
                continue
            by_name = self.attempt(renamed={out: name})[0]
            by_place = None
            if arena:
                places, room = self.layout((name, out))
                good, found = self.attempt(places=places, room=room)
                by_place = good and found[out] == places[out][0]
            yield source, k, target, by_name, by_place, self.equal(name, out)

    def equal(self, name, out):
        """Whether an output is a copy, also of other numbers."""
        if self.contents[name].tobytes() != self.wanted[out] or self.asked is not None:
            return False
        turned = {n: -value if value.dtype.kind == "f" else value for n, value in self.contents.items()}
        (bits, _), *_ = apart_from_this_process([lambda: Run(self.use, turned).run().bits(out)])
        return bits == turned[name].tobytes()

    def apart(self):
        """Is all right in one arena? With the outputs elsewhere? Which outputs leave their place?"""
        places, room = self.layout()
        good, found = self.attempt(places=places, room=room)
        moved = sorted({s for s, _, n in self.use.outputs if n in found and found[n] != places[n][0]})
        kept = {name: place for name, place in places.items() if name in self.use.read}
        return good, not kept or self.attempt(places=kept, room=room)[0], moved

    def answers(self, arena):
        return {
            "shape_only": list(self.shape_only()),
            "arena": self.apart() if arena else None,
            "inplace": list(self.pairs(arena)),
        }

    def result(self, arena):
        self.ask_at_once(arena)
        row = {
            "outputs": sorted({s for s, _, n in self.use.outputs}),
            "plain": self.use.plain(),
            "use": self.use.words(),
            **self.answers(arena),
        }
        row["shares"] = [
            (source, target)
            for (source, _, name), (target, _, out) in itertools.product(self.use.inputs, self.use.outputs)
            if name != out and self.sizes[out] and self.pointers.get(name) == self.pointers.get(out)
        ]
        return row


def drawn(use):
    return {name: content(name, *use.types[name], seed=k) for k, name in enumerate(use.read)}


def results(use):
    """What an op reads and writes, as arrays."""
    contents = drawn(use)
    run = Run(use, contents).run()
    made = {}
    for name in use.written:
        tensor = run.tensor(name)
        if tensor._is_initialized():
            made[name] = np.array(tensor)
        elif 0 in tensor.shape():  # XShape, which is all shape
            made[name] = np.zeros(tensor.shape(), TYPES[use.types[name][0]])
    return {**contents, **made}


def varied(use):
    """Uses of the same op with other extents, and what each is given."""
    base = use.forward or use
    others = []
    for dims, attrs, exchanged in variants(base.op.type, base.dims()):
        other = base.varied(dims, attrs, exchanged)
        if other.elements(other.read) <= MOST and (dims != base.dims() or attrs):
            others.append(other)
    if not use.forward:
        return [(other, drawn(other)) for other in others]
    runs = apart_from_this_process([lambda other=other: results(other) for other in others])
    made = [given(use, other, values) for other, (values, _) in zip(others, runs) if values is not None]  # noqa: B905
    return [each for each in made if each is not None]


def given(use, forward, made):
    """A gradient beside a run of its forward op, and what it is given by that; None where something is missing."""
    op = proto.OpDesc()
    op.CopyFrom(use.op)
    for name, value in forward.attrs.items():
        if any(attr.name == name for attr in op.attrs):
            put(op, name, value)
    outputs = {(slot + "@GRAD", k): name for slot, k, name in forward.outputs}
    types, contents = dict(use.types), {}
    for slot, k, name in use.inputs:
        value = made.get(name, made.get(outputs.get((slot, k))))
        if value is None:  # it is not of the forward op, or is not there
            return None
        types[name] = (use.types[name][0], value.shape)
        contents[name] = value if name in made else content(name, *types[name], seed=len(contents))
    return Use(op, types, use.lods, forward, forward.attrs), contents


def forms(some):
    """The first use of each form."""
    found = {}
    for use in some:
        found.setdefault(use.form(), use)
    return list(found.values())[:FORMS]


def main():
    arena = int(paddle.__version__.split(".")[0]) >= 3
    done, programs = sys.argv[1].split(","), sys.argv[2:]
    for kind, some in uses(programs):
        if kind in done:
            continue
        every = [(use, drawn(use)) for use in some]
        for use in forms(some):
            every += varied(use)
        trials = [Trial(use, contents) for use, contents in every]
        firsts = apart_from_this_process([trial.alone for trial in trials])
        for trial, first in zip(trials, firsts):  # noqa: B905
            try:
                trial.begin(*first)
                row = trial.result(arena)
            except ValueError as error:
                row = {"error": str(error), "use": trial.use.words()}
            print(json.dumps({"op": kind, "version": paddle.__version__, **row}), flush=True)


if __name__ == "__main__":
    main()
