"""Other extents and attributes than those of the programs, in which their ops are tried too.

What is right for one extent may be wrong for another: kernels take 8 or 16 elements at a time, pick another algorithm
for large matrices, or another loop for an axis in the middle. A variant is (extents by slot, attributes).
"""

POOLS = (
    (2, 3, 5, 7, 9, 11, 13, 15, 17, 19),
    (4, 12, 20, 28, 35, 36, 44, 52, 60, 68),
    (8, 16, 24, 32, 40, 48, 56, 64, 72, 80),
    (6, 33, 50, 65, 100, 101, 127, 130, 200, 300),
)
"""Extents that take the places of a use's own, the smallest of the smallest: a 1 stays."""

FLAT = ((7,), (35,), (1,), (12, 20), (3, 5, 7), (100, 101), (2, 3, 4, 5))
ELEMENTWISE = (
    [({"X": dims, "Y": dims}, {"axis": -1}) for dims in ((7,), (3, 20), (5, 12, 35), (100, 101), (2, 3, 4, 5))]
    + [({"X": x, "Y": y}, {"axis": -1}) for x, y in (((4, 6, 35), (35,)), ((3, 5, 20), (5, 20)), ((9, 8), (8,)))]
    + [({"X": (3, 5, 7), "Y": y}, {"axis": axis}) for y, axis in (((5,), 1), ((3,), 0), ((3, 5), 0), ((5, 7), 1))]
    + [({"X": (7, 7, 7), "Y": y}, {"axis": axis}) for y, axis in (((7,), 0), ((7,), 1), ((7, 7), 0))]
    + [({"X": (20, 12, 16), "Y": y}, {"axis": axis}) for y, axis in (((12,), 1), ((20,), 0), ((20, 12), 0))]
    + [({"X": (3, 5, 7), "Y": y}, {"axis": -1}) for y in ((1,), (5, 1), (3, 1, 7), (3, 5, 1), (1, 5, 7))]
    + [({"X": x, "Y": (3, 5, 7)}, {"axis": -1}) for x in ((1,), (7,), (5, 7), (3, 1, 7), (3, 5, 1), (1, 1, 1))]
    + [({"X": x, "Y": (20, 12, 16)}, {"axis": -1}) for x in ((16,), (12, 16), (20, 1, 16), (1, 12, 16), (20, 12, 1))]
    + [({"X": x, "Y": (64, 100)}, {"axis": -1}) for x in ((100,), (64, 1), (1, 1))]
    + [({"X": (4, 1), "Y": (1, 9)}, {"axis": -1}), ({"X": (1, 20), "Y": (12, 1)}, {"axis": -1})]
)
FLAGS = ((False, False), (True, False), (False, True), (True, True))
POOLED = {"adaptive": False, "global_pooling": False, "ceil_mode": False, "exclusive": True}
SHAPES_OF_X = ((4, 12), (7, 100), (3, 5, 35), (5, 8, 9), (2, 3, 4, 5))
AXES = [({"X": dims}, {"axis": axis}) for dims in SHAPES_OF_X for axis in (-1, 0, 1)]


def _normed(dims, begin):
    count = 1
    for extent in dims[begin:]:
        count *= extent
    return {"X": dims, "Scale": (count,), "Bias": (count,)}, {"begin_norm_axis": begin}


def _by_channel(dims, layout="NCHW"):
    channels = (dims[1] if layout == "NCHW" else dims[-1],)
    return {"X": dims, **dict.fromkeys(("Scale", "Bias", "Mean", "Variance"), channels)}, {"data_layout": layout}


def _convolved(image, kernel, groups=1, stride=1, padding=0):
    return {"Input": image, "Filter": kernel}, {
        "groups": groups,
        "strides": [stride, stride],
        "paddings": [padding, padding],
        "dilations": [1, 1],
        "padding_algorithm": "EXPLICIT",
    }


def _reduced(dims, axes, keep):
    return {"X": dims}, {"dim": axes, "keep_dim": keep, "reduce_all": len(axes) == len(dims)}


def _labelled(slot, dims, axis):
    label = tuple(1 if k == axis % len(dims) else extent for k, extent in enumerate(dims))
    return {slot: dims, "Label": label}, ({"axis": axis} if slot == "Logits" else {})


VARIED = {
    "mul": [({"X": (n, n), "Y": (n, n)}, {}) for n in (7, 20, 64, 100, 300, 700)]
    + [({"X": x, "Y": y}, {}) for x, y in (((35, 20), (20, 20)), ((5, 35), (35, 12)), ((3, 8), (8, 8)))]
    + [({"X": (3, 5, 20), "Y": (20, 20)}, {"x_num_col_dims": 2})],
    "matmul_v2": [
        ({"X": (*b, n, n), "Y": (*b, n, n)}, {"trans_x": x, "trans_y": y})
        for b, n in (((), 7), ((), 100), ((), 300), ((3,), 20), ((2, 3), 5))
        for x, y in FLAGS
    ]
    + [
        ({"X": x, "Y": y}, {"trans_x": False, "trans_y": False})
        for x, y in (
            ((35, 20), (20, 12)),
            ((3, 35, 20), (20, 20)),
            ((20, 20), (20,)),
            ((1, 9), (9, 9)),
            ((700, 700),) * 2,
        )
    ],
    "conv2d": [
        _convolved((2, 8, 9, 11), (8, 8, 1, 1)),
        _convolved((2, 8, 9, 11), (8, 8, 3, 3), padding=1),
        _convolved((1, 20, 13, 13), (20, 20, 1, 1)),
        _convolved((3, 5, 16, 16), (12, 5, 3, 3), stride=2),
        _convolved((1, 64, 56, 56), (64, 64, 1, 1)),
        _convolved((2, 8, 9, 11), (8, 4, 3, 3), groups=2, padding=1),
    ],
    "depthwise_conv2d": [
        _convolved((2, 8, 9, 11), (8, 1, 1, 1), groups=8),
        _convolved((2, 8, 9, 11), (8, 1, 3, 3), groups=8, padding=1),
        _convolved((2, 8, 9, 11), (8, 1, 5, 5), groups=8, padding=2),
        _convolved((2, 8, 9, 11), (16, 1, 3, 3), groups=8, padding=1),
        _convolved((2, 8, 16, 16), (32, 1, 3, 3), groups=8, padding=1, stride=2),
        _convolved((1, 35, 16, 16), (35, 1, 3, 3), groups=35, padding=1),
        _convolved((1, 16, 28, 20), (16, 1, 3, 3), groups=16, padding=1),
    ],
    "layer_norm": [
        _normed(dims, len(dims) - 1)
        for dims in (
            *(
                (n, m)
                for n, m in ((4, 8), (1, 16), (4, 12), (3, 20), (5, 35), (6, 1), (3, 24), (2, 40), (9, 7), (5, 64))
            ),
            *((2, 7, 64), (2, 3, 100), (16, 512), (3, 1000), (2, 5, 768)),
        )
    ]
    + [_normed((2, 5, 8), 1), _normed((3, 4, 5), 1), _normed((3, 2, 35), 1)],
    "batch_norm": [
        *(_by_channel(dims) for dims in ((2, 8, 9, 11), (3, 5, 7, 7), (1, 35, 4, 4), (4, 12), (2, 20, 5, 3))),
        *(_by_channel(dims, "NHWC") for dims in ((2, 9, 11, 8), (3, 4, 5, 7))),
        *((_by_channel(dims)[0], {"use_global_stats": True}) for dims in ((2, 8, 9, 11), (3, 5, 7, 7), (4, 12))),
    ],
    "pool2d": [
        ({"X": dims}, {"pooling_type": how, "ksize": [k, k], "strides": [s, s], "paddings": [pad, pad], **POOLED})
        for dims, k, s, pad in (((2, 3, 9, 11), 3, 2, 1), ((1, 8, 16, 16), 2, 2, 0), ((3, 5, 7, 7), 3, 1, 1))
        for how in ("max", "avg")
    ]
    + [({"X": (2, 4, 5, 5)}, {"pooling_type": how, **POOLED, "global_pooling": True}) for how in ("max", "avg")],
    "softmax": AXES,
    "softmax_with_cross_entropy": [
        _labelled("Logits", dims, axis)
        for dims, axis in (((5, 12), -1), ((3, 35), -1), ((7, 100), -1), ((16, 8), -1), ((3, 4, 5), 1), ((9, 5), 0))
    ],
    "cross_entropy2": [_labelled("X", dims, -1) for dims in ((5, 12), (3, 35), (7, 100), (16, 8))],
    "concat": AXES,
    "transpose2": [
        ({"X": dims}, {"axis": axis})
        for dims in ((3, 5, 7), (8, 8, 8), (12, 1, 35))
        for axis in ([0, 1, 2], [0, 2, 1], [2, 1, 0], [1, 0, 2])
    ],
    "reshape2": [({"X": (3, 5, 8)}, {"shape": shape}) for shape in ([-1], [15, 8], [0, -1], [5, 3, 8], [3, 5, 8, 1])]
    + [({"X": dims}, {"shape": [-1, 1]}) for dims in FLAT],
    "squeeze2": [({"X": (1, 5, 1, 35)}, {"axes": axes}) for axes in ([0], [2], [0, 2], [-2])]
    + [({"X": (1, n)}, {"axes": [0]}) for n in (7, 20, 100)],
    "unsqueeze2": [({"X": dims}, {"axes": axes}) for dims in FLAT for axes in ([0], [-1], [0, 1])],
    "flatten_contiguous_range": [
        ({"X": (2, 3, 5, 7)}, {"start_axis": start, "stop_axis": stop}) for start, stop in ((1, -1), (0, -1), (1, 2))
    ]
    + [({"X": dims}, {"start_axis": 0, "stop_axis": -1}) for dims in FLAT],
    "scale": [
        ({"X": dims}, {"scale": scale, "bias": bias, "bias_after_scale": after})
        for dims in ((7,), (12, 20), (100, 101))
        for scale, bias, after in ((1.0, 0.0, True), (2.5, 0.5, True), (0.5, 1.5, False))
    ],
    "dropout": [
        (
            {"X": dims},
            {"is_test": test, "dropout_prob": 0.4, "fix_seed": True, "seed": 3, "dropout_implementation": how},
        )
        for dims in ((7,), (12, 20), (100, 101))
        for test in (True, False)
        for how in ("upscale_in_train", "downgrade_in_infer")
    ],
    "lookup_table_v2": [
        ({"W": w, "Ids": ids}, {}) for w, ids in (((9, 5), (7,)), ((20, 20), (3, 4)), ((50, 33), (65,)))
    ],
    "gather": [({"X": x, "Index": (n,)}, {"axis": 0}) for x, n in (((9, 5), 7), ((20, 20), 20), ((50, 33), 65))],
    **{
        kind: [
            _reduced(dims, axes, keep)
            for dims, axes in (
                *(((3, 5, 7), axes) for axes in ([0], [1], [-1], [0, 2], [0, 1, 2])),
                *(((12, 20), axes) for axes in ([0], [1])),
                *(((1, 35), [0]), ((35, 1), [1]), ((3, 1, 7), [1]), ((1, 1, 100), [0, 1]), ((4, 1), [-1])),
            )
            for keep in (True, False)
        ]
        for kind in ("reduce_mean", "reduce_sum")
    },
}
UNARY = (
    "assign",
    "cast",
    "hard_sigmoid",
    "hard_swish",
    "logical_not",
    "mean",
    "relu",
    "sigmoid",
    "square",
    "swish",
    "tanh",
)
VARIED.update((kind, [({"X": dims}, {}) for dims in FLAT]) for kind in (*UNARY, "sum"))

MOST = 1 << 19
"""Elements of the largest input of a variant."""


def variants(kind, dims):
    """(extents of each input by its place, attributes) of an op whose inputs, as (slot, position), have these extents.

    `kind` is the forward op. Attributes that hold extents follow those: `exchanged` says which became which.
    """
    told = ELEMENTWISE if kind.startswith("elementwise_") else VARIED.get(kind, ())
    for by_slot, attrs in told:
        yield {at: by_slot.get(at[0], own) for at, own in dims.items()}, attrs, {}
    values = sorted({extent for own in dims.values() for extent in own if extent > 1})
    for pool in POOLS[2:] if told else POOLS:
        if len(values) <= len(pool):
            exchanged = dict(zip(values, pool))  # noqa: B905 (2.6.2 has Python 3.8)
            yield {at: tuple(exchanged.get(e, e) for e in own) for at, own in dims.items()}, {}, exchanged
