"""The uses of ops in programs: each with its attributes, types and extents. For Paddle's own interpreter."""

import itertools

import numpy as np
from paddle.base import framework  # noqa: F401 (from 2.5 on)
from paddle.base.proto import framework_pb2 as proto

TENSOR, UINT8, LONG = 7, 20, 9
INT, FLOAT, STRING, INTS, FLAG = 0, 1, 2, 3, 6
TYPES = {
    0: "bool",
    1: "int16",
    2: "int32",
    3: "int64",
    4: "float16",
    5: "float32",
    6: "float64",
    20: "uint8",
    21: "int8",
}
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
OPEN, WORDS, USES, ELEMENTS = 16, 512, 3, 1 << 20
EXTENTS = {"groups", "shape", "sections"}
"""Attributes that hold extents, and become others with them."""
LANES = 8
NOT_COMPUTED = {"op_callstack", "op_role", "op_role_var", "op_namescope", "op_device", "with_quant_attr"}


class Use:
    """One op with the types and shapes of what it is given."""

    def __init__(self, op, types, lods, forward=None, attrs=None):
        self.op, self.types, self.lods, self.forward, self.attrs = op, types, lods, forward, attrs or {}
        self.inputs = [(slot.parameter, k, name) for slot in op.inputs for k, name in enumerate(slot.arguments)]
        self.outputs = [(slot.parameter, k, name) for slot in op.outputs for k, name in enumerate(slot.arguments)]
        self.read = list(dict.fromkeys(name for _, _, name in self.inputs))
        self.written = [name for name in dict.fromkeys(name for _, _, name in self.outputs) if name not in self.read]

    def key(self):
        attrs = sorted(str(a) for a in self.op.attrs if a.name not in NOT_COMPUTED)
        return self.op.type, tuple(attrs), tuple(self.types[name] for _, _, name in self.inputs)

    def plain(self):
        """Whether X is as large as what an element-wise op computes: Y has its shape, or that of its last axes.

        Of `layer_norm`, whether its rows are whole vectors.
        """
        dims = {slot: self.types[name][1] for slot, _, name in reversed(self.inputs)}
        if self.op.type == "layer_norm":
            return not dims["X"][-1] % LANES
        if not self.op.type.startswith("elementwise_"):
            return True
        x, y = dims.get("X", ()), dims.get("Y", ())
        axis = next((attr.i for attr in self.op.attrs if attr.name == "axis"), -1)
        return len(y) <= len(x) and x[len(x) - len(y) :] == y and axis in (-1, len(x) - len(y))

    def form(self):
        """What may pick another kernel: the slots, the kind of shapes, and attributes that are words or flags."""
        picks = sorted(
            (a.name, a.s, a.b) for a in self.op.attrs if a.type in (STRING, FLAG) and a.name not in NOT_COMPUTED
        )
        slots = tuple(slot for slot, _, _ in (*self.inputs, *self.outputs))
        return slots, self.plain(), tuple(picks)

    def words(self):
        """What makes this use another than those before it, for people."""
        shapes = (f"{slot} {'x'.join(map(str, self.types[name][1])) or 'scalar'}" for slot, _, name in self.inputs)
        return ", ".join([*shapes, *(f"{name}={value}" for name, value in self.attrs.items())])

    def dims(self):
        return {(slot, k): self.types[name][1] for slot, k, name in self.inputs}

    def varied(self, dims, attrs, exchanged):
        """This use with other extents of its inputs and other attributes; types of a gradient's follow by a run."""
        op = type(self.op)()
        op.CopyFrom(self.op)
        attrs = dict(attrs)
        for attr in op.attrs:
            if attr.name in EXTENTS and attr.type in (INT, INTS) and attr.name not in attrs:
                every = [exchanged.get(v, v) for v in (attr.ints if attr.type == INTS else [attr.i])]
                attrs[attr.name] = every if attr.type == INTS else every[0]
        for name, value in attrs.items():
            put(op, name, value)
        types = dict(self.types)
        types.update((name, (self.types[name][0], dims[slot, k])) for slot, k, name in self.inputs)
        return Use(op, types, self.lods, attrs=attrs)

    def elements(self, names=None):
        every = self.read + self.written if names is None else names
        return max((int(np.prod(self.types[name][1])) for name in every), default=0)


def put(op, name, value):
    """Give an op an attribute, or another value of it."""
    attr = next((attr for attr in op.attrs if attr.name == name), None)
    if attr is None:
        attr = op.attrs.add()
        attr.name = name
        kinds = {bool: FLAG, int: INT, float: FLOAT, str: STRING, list: INTS}
        attr.type = kinds[type(value)]
    if isinstance(value, list):
        attr.ints[:] = value
    else:
        setattr(attr, {FLAG: "b", INT: "i", LONG: "l", FLOAT: "f", STRING: "s"}[attr.type], value)


def uses(paths):
    """Every distinct use of an op in the programs, a few of each op: smallest, largest, and between."""
    found = {}
    for path in paths:
        program = proto.ProgramDesc()
        with open(path, "rb") as file:
            program.ParseFromString(file.read()) if hasattr(program, "ParseFromString") else program.MergeFromString(
                file.read()
            )
        forwards = {}
        for block in program.blocks:
            for op in block.ops:
                use = use_of(program, block, op)
                if use is not None:
                    forwards.update((name, use) for _, _, name in use.outputs)
        for block in program.blocks:
            for op in block.ops:
                use = use_of(program, block, op)
                if use is not None:
                    use.forward = forward_of(use, forwards)
                    found.setdefault(op.type, {}).setdefault(use.key(), use)
    for kind in sorted(found):
        yield kind, sorted(chosen(sorted(found[kind].values(), key=Use.elements)), key=Use.elements)


def forward_of(use, forwards):
    """The op whose gradient this is: it writes what the gradient is told the gradient of."""
    kind = use.op.type[: -len("_grad")]
    told = [name.partition("@GRAD")[0] for slot, _, name in use.inputs if slot.endswith("@GRAD")]
    found = next((forwards[name] for name in told if name in forwards), None)
    return found if found is not None and found.op.type == kind else None


def chosen(every):
    """Some of many: of each form the smallest, the largest, and some between; the smallest even if it is too large."""
    groups = {}
    for use in every:
        groups.setdefault(use.form(), []).append(use)
    for group in groups.values():
        some = [use for use in group if use.elements() <= ELEMENTS] or group[:1]
        step = max(1, len(some) / USES)
        yield from (some[min(len(some) - 1, int(k * step))] for k in range(min(len(some), USES)))


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
