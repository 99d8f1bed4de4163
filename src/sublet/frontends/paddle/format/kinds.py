"""Paddle's numbers for kinds of variables, element types and attribute kinds, and the message fields of each."""

from __future__ import annotations

from sublet.base.tensor import DType

KINDS = {
    7: "DENSE_TENSOR", 8: "SELECTED_ROWS", 9: "FEED_MINIBATCH", 10: "FETCH_LIST", 11: "STEP_SCOPES",
    12: "RANK_TABLE", 13: "TENSOR_ARRAY", 14: "PLACE_LIST", 15: "READER", 17: "RAW", 18: "TUPLE",
    25: "STRING", 26: "STRINGS", 27: "VOCAB", 28: "FEED_LIST", 29: "PSTRING", 30: "SPARSE_COO", 31: "SPARSE_CSR",
}  # fmt: skip
"""Kinds of variables; older versions say LOD_TENSOR, LOD_TENSOR_ARRAY and LOD_RANK_TABLE."""

DTYPES = {
    0: DType.BOOL, 1: DType.I16, 2: DType.I32, 3: DType.I64, 4: DType.F16, 5: DType.F32, 6: DType.F64,
    19: DType.U64, 20: DType.U8, 21: DType.I8, 22: DType.BF16, 23: DType.C64, 24: DType.C128,
    32: DType.F8E4M3FN, 33: DType.F8E5M2,
}  # fmt: skip
"""Element types; attributes named "dtype" use the same numbers."""

TENSOR_FIELD = {
    "DENSE_TENSOR": (3, True), "SELECTED_ROWS": (2, False), "TENSOR_ARRAY": (4, True), "STRING": (8, False),
    "STRINGS": (9, False), "VOCAB": (10, False), "SPARSE_COO": (11, False), "SPARSE_CSR": (12, False),
}  # fmt: skip
"""The field with the tensor description of each kind of variable, and True if a message lies in between."""

ATTRS = {
    0: ("INT", 3, False), 1: ("FLOAT", 4, False), 2: ("STRING", 5, False), 3: ("INTS", 6, True),
    4: ("FLOATS", 7, True), 5: ("STRINGS", 8, True), 6: ("BOOLEAN", 10, False), 7: ("BOOLEANS", 11, True),
    8: ("BLOCK", 12, False), 9: ("LONG", 13, False), 10: ("BLOCKS", 14, True), 11: ("LONGS", 15, True),
    12: ("FLOAT64S", 16, True), 13: ("VAR", 17, False), 14: ("VARS", 18, True), 15: ("FLOAT64", 19, False),
    16: ("SCALAR", 20, False), 17: ("SCALARS", 21, True),
}  # fmt: skip
"""Kinds of attributes: the name, the field of the value, and True for a list."""

SCALARS: dict[int, type] = {1: bool, 2: int, 3: float, 4: complex}
