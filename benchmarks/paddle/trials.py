"""Runs in Paddle's own interpreter, and imports nothing of Sublet: tries every op of some programs by itself.

    python trials.py PROGRAM...        prints a line of JSON for each use

Each distinct use of an op (its attributes, types and shapes) becomes a program of one op. Its result, with every
tensor in memory of its own, is what all other runs are compared with, bit for bit:

    names    an output under the name of an input of as many bytes (in-place, by name)
    places   input and output as two views at one offset of an arena (in-place, by address)
    arena    every tensor a view at an offset of its own: whoever compares allocations takes this for in-place
    poison   an input's content replaced, by NaN and by other numbers: whoever reads only the shape is not touched

Each run is a process of its own (a fork of this one), so that a run that crashes or corrupts memory is a plain no.
"""

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

paddle.enable_static()
try:
    from paddle.base import framework
    from paddle.base.proto import framework_pb2 as proto
except ImportError:
    from paddle.fluid import framework
    from paddle.fluid.proto import framework_pb2 as proto

TENSOR, UINT8, LONG, LONGS, INT, STRINGS = 7, 20, 9, 11, 0, 5
TYPES = {
    0: "bool", 1: "int16", 2: "int32", 3: "int64", 4: "float16", 5: "float32", 6: "float64", 20: "uint8", 21: "int8",
}  # fmt: skip
CONTROL = {
    "feed",
    "fetch",
    "while",
    "while_grad",
    "conditional_block",
    "conditional_block_grad",
    "conditional_block_infer",
    "select_input",
    "select_output",
}
OPEN, WORDS, USES, ELEMENTS, ALIGN, SECONDS = 16, 512, 6, 1 << 22, 64, 120
NOT_COMPUTED = {"op_callstack", "op_role", "op_role_var", "op_namescope", "op_device", "with_quant_attr"}


class Use:
    """One op with the types and shapes of what it is given."""

    def __init__(self, op, types, lods):
        self.op, self.types, self.lods = op, types, lods
        self.inputs = [(slot.parameter, k, name) for slot in op.inputs for k, name in enumerate(slot.arguments)]
        self.outputs = [(slot.parameter, k, name) for slot in op.outputs for k, name in enumerate(slot.arguments)]
        self.read = list(dict.fromkeys(name for _, _, name in self.inputs))
        self.written = [name for name in dict.fromkeys(name for _, _, name in self.outputs) if name not in self.read]

    def key(self):
        attrs = sorted(str(a) for a in self.op.attrs if a.name not in NOT_COMPUTED)
        return self.op.type, tuple(attrs), tuple(self.types[name] for _, _, name in self.inputs)

    def plain(self):
        """Whether X is as large as what an element-wise op computes: Y has its shape, or that of its last axes."""
        if not self.op.type.startswith("elementwise_"):
            return True
        dims = {slot: self.types[name][1] for slot, _, name in reversed(self.inputs)}
        x, y = dims.get("X", ()), dims.get("Y", ())
        return len(y) <= len(x) and x[len(x) - len(y) :] == y

    def elements(self):
        return max((int(np.prod(self.types[name][1])) for name in self.read + self.written), default=0)


def uses(paths):
    """Every distinct use of an op in the programs, a few of each op: smallest, largest, and between."""
    found = {}
    for path in paths:
        program = proto.ProgramDesc()
        with open(path, "rb") as file:
            program.ParseFromString(file.read()) if hasattr(program, "ParseFromString") else program.MergeFromString(
                file.read()
            )
        for block in program.blocks:
            for op in block.ops:
                use = use_of(program, block, op)
                if use is not None:
                    found.setdefault(op.type, {}).setdefault(use.key(), use)
    for kind in sorted(found):
        every = sorted((u for u in found[kind].values() if u.elements() <= ELEMENTS), key=Use.elements)
        yield kind, sorted(chosen(every), key=Use.elements)


def chosen(every):
    """Some of many: of each number of inputs and each kind of shapes the smallest, the largest, and some between."""
    groups = {}
    for use in every:
        groups.setdefault((len(use.inputs), len(use.written), use.plain()), []).append(use)
    for group in groups.values():
        step = max(1, len(group) / USES)
        yield from (group[min(len(group) - 1, int(k * step))] for k in range(min(len(group), USES)))


def use_of(program, block, op):
    if op.type in CONTROL or any(a.type in (8, 10) for a in op.attrs):
        return None
    types, lods = {}, set()
    for slot in itertools.chain(op.inputs, op.outputs):
        for name in slot.arguments:
            var, at = None, block
            while var is None:
                var = next((v for v in at.vars if v.name == name), None)
                if var is None and at.forward_block_idx >= 0:  # a gradient block sees the scopes of its forward
                    var = next((v for v in program.blocks[at.forward_block_idx].vars if v.name == name), None)
                if at.parent_idx < 0:
                    break
                at = program.blocks[at.parent_idx]
            if name == "@EMPTY@":
                return None
            if var is None or var.type.type != TENSOR:
                return None
            described = tensor_of(var)
            tensor = described.tensor
            if tensor.data_type not in TYPES:
                return None
            sequences = 1 in (getattr(described, "lod_level", 0), getattr(described, "legacy_lod_level", 0))
            first = WORDS if sequences else 2
            dims = tuple(d if d >= 0 else (OPEN if i else first) for i, d in enumerate(tensor.dims))
            types[name] = (tensor.data_type, dims)
            if sequences:
                lods.add(name)
    return Use(op, types, lods)


def tensor_of(var):
    """The field has had two names."""
    return var.type.dense_tensor if hasattr(var.type, "dense_tensor") else var.type.lod_tensor


def content(name, kind, dims, seed):
    """Numbers that any op can be given: between 0 and 1, indices 0 and 1."""
    random = np.random.RandomState(abs(hash((seed, len(name), dims))) % (1 << 31))
    if TYPES[kind].startswith("float"):
        return random.uniform(0.1, 0.9, dims).astype(TYPES[kind])
    if kind == 0:
        return random.randint(0, 2, dims).astype("bool")
    return np.zeros(dims, TYPES[kind]) if not np.prod(dims) else random.randint(0, 2, dims).astype(TYPES[kind])


def describe(block, name, kind, dims):
    var = block.vars.add()
    var.name, var.persistable, var.type.type = name, True, TENSOR
    tensor = tensor_of(var).tensor
    tensor.data_type = kind
    tensor.dims.extend(dims)


def add(block, kind, inputs, outputs, **attrs):
    op = block.ops.add()
    op.type = kind
    for slots, at in ((inputs, op.inputs), (outputs, op.outputs)):
        for slot, name in slots.items():
            each = at.add()
            each.parameter = slot
            each.arguments.append(name)
    for name, value in attrs.items():
        attr = op.attrs.add()
        attr.name, attr.type, attr.l = name, LONG, value


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


def apart_from_this_process(work):
    """What `work` gives, computed in a fork; None where that dies, hangs or raises; the error's text then."""
    source, sink = os.pipe()
    child = os.fork()
    if not child:
        os.close(source)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGBUS):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(SECONDS)
        try:
            told = work(), ""
        except Exception as error:
            told = None, " ".join(str(error).split())[-300:]
        with os.fdopen(sink, "wb") as file:
            pickle.dump(told, file)
        os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as file:
        content = file.read()
    os.waitpid(child, 0)
    return pickle.loads(content) if content else (None, "crashes Paddle")


class Trial:
    """What one use tells."""

    def __init__(self, use):
        self.use = use
        self.contents = {name: content(name, *use.types[name], seed=k) for k, name in enumerate(use.read)}
        (first, why), (second, _) = (apart_from_this_process(self.alone) for _ in range(2))
        if first is None:
            raise ValueError(why)
        if second is None or first[0] != second[0]:
            raise ValueError("differs from run to run")
        self.wanted, self.pointers = first
        before = {name: len(self.wanted[name]) for name in use.written if self.wanted[name]}
        filled, _ = apart_from_this_process(lambda: self.alone(before))
        for name in before:  # some are allocated and never written: whatever lies there is no result
            if filled is None or filled[0][name] != self.wanted[name]:
                self.wanted[name] = b""
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
        return wanted, {name: run.tensor(name)._ptr() for name in filled if np.prod(run.tensor(name).shape())}

    def attempt(self, contents=None, renamed=None, places=None, room=0):
        """Whether a run gives what the first gave, and at which offsets of the arena tensors lie then."""

        def work():
            run = Run(self.use, contents or self.contents, renamed, places, room).run()
            good = all(run.bits(name) == bits for name, bits in self.wanted.items() if bits)
            return good, {name: run.offset(name) for name in places or ()}

        return apart_from_this_process(work)[0] or (False, {})

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
        if self.contents[name].tobytes() != self.wanted[out]:
            return False
        turned = {n: -value if value.dtype.kind == "f" else value for n, value in self.contents.items()}
        return apart_from_this_process(lambda: Run(self.use, turned).run().bits(out))[0] == turned[name].tobytes()

    def apart(self):
        """Is all right in one arena? With the outputs elsewhere? Which outputs leave their place?"""
        places, room = self.layout()
        good, found = self.attempt(places=places, room=room)
        moved = sorted({s for s, _, n in self.use.outputs if n in found and found[n] != places[n][0]})
        kept = {name: place for name, place in places.items() if name in self.use.read}
        return good, not kept or self.attempt(places=kept, room=room)[0], moved

    def result(self, arena):
        row = {
            "outputs": sorted({s for s, _, n in self.use.outputs}),
            "plain": self.use.plain(),
            "shape_only": list(self.shape_only()),
            "inplace": list(self.pairs(arena)),
        }
        row["arena"] = self.apart() if arena else None
        row["shares"] = [
            (source, target)
            for (source, _, name), (target, _, out) in itertools.product(self.use.inputs, self.use.outputs)
            if name != out and self.sizes[out] and self.pointers.get(name) == self.pointers.get(out)
        ]
        return row


def main():
    arena = int(paddle.__version__.split(".")[0]) >= 3
    for kind, some in uses(sys.argv[1:]):
        for use in some:
            try:
                row = Trial(use).result(arena)
            except ValueError as error:
                row = {"error": str(error)}
            print(json.dumps({"op": kind, "version": paddle.__version__, **row}), flush=True)


if __name__ == "__main__":
    main()
