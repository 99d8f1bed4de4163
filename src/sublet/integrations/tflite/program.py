"""Records of a .tflite file: subgraphs, tensors, operators and buffers, with every index checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sublet.base.errors import ModelError, SubletError
from sublet.base.flatbuffer import Table, Wire
from sublet.base.tensor import DType, Spec, TensorSpec, Unplannable

# Codes of the .tflite schema: built-in operators and element types, in the order of the schema.

_OPERATORS = (
    "ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR "
    "FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC "
    "LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH "
    "SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER "
    "BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE "
    "BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM "
    "ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE "
    "TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK "
    "LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL "
    "FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL "
    "REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND "
    "HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM "
    "BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS "
    "HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE "
    "ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU "
    "DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2 "
    "UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE "
    "STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE "
    "STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE "
    "STABLEHLO_ABS STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG "
    "STABLEHLO_MINIMUM STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT "
    "STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT "
    "STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL "
    "STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE "
    "STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE "
)
OPERATORS = _OPERATORS.split()
"""The built-in operators; the operator code is the position."""

CUSTOM, PLACEHOLDER = OPERATORS.index("CUSTOM"), OPERATORS.index("PLACEHOLDER_FOR_GREATER_OP_CODES")

TYPES: tuple[DType | str, ...] = (
    *(DType.F32, DType.F16, DType.I32, DType.U8, DType.I64, "str", DType.BOOL, DType.I16, DType.C64, DType.I8),
    *(DType.F64, DType.C128, DType.U64, DType.I32, "variant", DType.U32, DType.U16, DType.I4, DType.BF16, DType.I2),
    *(DType.U4, DType.F8E4M3FN, DType.F8E5M2),
)
"""The element types by schema number: a data type, or the name of a type without a fixed size."""

RESOURCE = 13


ADVICE = "the file is damaged, or not a TensorFlow Lite model: save the model again"
IDENTIFIER = b"TFL3"
COMPRESSED = "COMPRESSION_METADATA"
MAX_RANK = 64
RESOURCE_SPEC = TensorSpec(DType.I32, (0,))
"""The spec of a resource handle: the kernel stores the name outside the arena, so the tensor has no bytes."""

OPTIONS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "IF": (("then", 0), ("else", 1)),
    "WHILE": (("cond", 0), ("body", 1)),
    "CALL_ONCE": (("init", 0),),
    "CALL": (("callee", 0),),
    "CONCATENATION": (("axis", 0),),
    "PACK": (("axis", 1),),
    "UNPACK": (("axis", 1),),
    "STRIDED_SLICE": tuple((f"{name}_mask", i) for i, name in enumerate(("begin", "end", "ellipsis", "new", "shrink"))),
    "GATHER": (("axis", 0), ("batch_dims", 1)),
}
"""The decoded options of each operator, with the field number; all are 32-bit integers."""


CUSTOM_PREFIX = "custom."
"""The beginning of the names of custom operators."""


@dataclass(frozen=True, slots=True)
class TFLiteTensor:
    """A tensor of a subgraph.

    spec          the planned type and shape
    type          the element type number of the schema
    buffer        the position of the content in the program's buffers
    is_variable   True if the content persists from run to run
    signature     the shape with -1 for an extent left open by the converter
    scales        of the quantisation: one, or one per step along `axis`; empty if not quantised
    zero_points   one per scale
    axis          the quantised axis
    is_encoded    True if the buffer is sparse or external, so not the elements in row-major order
    """

    name: str
    spec: Spec
    type: int
    buffer: int
    is_variable: bool
    signature: tuple[int, ...]
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int
    is_encoded: bool

    @property
    def quantisation_text(self) -> str:
        """The quantisation as text; "" without quantisation."""
        if not self.scales:
            return ""
        if len(self.scales) > 1:
            return f"{len(self.scales)} scales along axis {self.axis}"
        return f"scale {self.scales[0]:.6g}, zero point {self.zero_points[0] if self.zero_points else 0}"


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator: the name, the tensors by position (-1 for an omitted tensor), and the options."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, int]
    texts: tuple[str, ...] = ()
    intermediates: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Subgraph:
    """Tensors, and operators in execution order."""

    name: str
    tensors: tuple[TFLiteTensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class TFLiteProgram:
    """A decoded file. The first subgraph is the entry point. A missing buffer is None; b"" is an empty buffer."""

    where: str
    version: int
    description: str
    subgraphs: tuple[Subgraph, ...]
    buffers: tuple[memoryview | None, ...]
    metadata: tuple[tuple[str, int], ...]
    has_detached_content: bool = field(default=False)
    """True if content lies behind the flatbuffer, addressed by an absolute file offset."""

    @property
    def may_be_compressed(self) -> bool:
        """True if constants may be compressed by TFLM's compression tool."""
        return any(name == COMPRESSED for name, _ in self.metadata)

    def constant_content(self, tensor: TFLiteTensor) -> memoryview | None:
        """Return the content of a constant tensor; None for a computed, input or variable tensor."""
        buffer = self.buffers[tensor.buffer]
        return buffer if buffer is not None and len(buffer) and not tensor.is_variable else None

    def metadata_content(self, name: str) -> memoryview | None:
        """Return the buffer of the metadata entry `name`; None without an entry."""
        for entry, buffer in self.metadata:
            if entry == name:
                return self.buffers[buffer] if self.buffers[buffer] is not None else memoryview(b"")
        return None


def decode(raw: bytes, where: str) -> TFLiteProgram:
    """Decode a file. Raises ModelError for a damaged file or a file of another format."""
    wire = Wire(raw, where, ADVICE)
    root = wire.root(IDENTIFIER)
    buffers, detached = [], False
    for table in root.tables(4):
        buffers.append(table.raw(0))
        detached |= table.integer(1, "Q") > 1
    detached |= root.offset_target(8) is not None or root.offset_target(9) is not None
    codes = [_operator_name(table) for table in root.tables(1)]
    subgraphs = tuple(_decode_subgraph(table, len(buffers), codes) for table in root.tables(2))
    if not subgraphs:
        raise ModelError(f"{where}: the model has no subgraph ({ADVICE})")
    metadata = []
    for table in root.tables(6):
        metadata.append((table.text(0), _checked_index(table, 1, "I", len(buffers), "buffer")))
    large = any(table.integer(9, "Q") > 1 for graph in root.tables(2) for table in graph.tables(3))
    description = root.text(3)
    return TFLiteProgram(
        where, root.integer(0, "I"), description, subgraphs, tuple(buffers), tuple(metadata), detached or large
    )


def _checked_index(table: Table, number: int, kind: str, count: int, what: str) -> int:
    """Return an index field. Raises ModelError for an index out of range."""
    index = table.integer(number, kind)
    if not 0 <= index < count:
        raise table.wire.format_error(table.at, f"there is no {what} {index}: the model has {count}")
    return index


def _operator_name(table: Table) -> str:
    """Return the name of an operator. Old files store the operator code in one byte, new files in both fields."""
    number = max(table.integer(0, "b"), table.integer(3, "i"))
    if number in (CUSTOM, PLACEHOLDER):
        return f"{CUSTOM_PREFIX}{re.sub(r'[^0-9A-Za-z_.:-]', '_', table.text(1))[:80]}"
    if not 0 <= number < len(OPERATORS):
        raise table.wire.format_error(table.at, f"unknown built-in operator {number}")
    return OPERATORS[number]


def _decode_subgraph(table: Table, buffers: int, codes: list[str]) -> Subgraph:
    tensors = tuple(_decode_tensor(inner, buffers) for inner in table.tables(0))
    count = len(tensors)
    operators = tuple(_decode_operator(inner, codes, count) for inner in table.tables(3))
    ends = [_tensor_positions(table, number, count, minimum=0) for number in (1, 2)]
    return Subgraph(table.text(4), tensors, ends[0], ends[1], operators)


def _tensor_positions(table: Table, number: int, count: int, minimum: int = -1) -> tuple[int, ...]:
    """Return a vector of tensor positions. Raises ModelError for a position below `minimum` or out of range."""
    indices = table.integers(number, "i")
    for index in indices:
        if not minimum <= index < count:
            raise table.wire.format_error(table.at, f"there is no tensor {index}: the subgraph has {count}")
    return indices


def _decode_tensor(table: Table, buffers: int) -> TFLiteTensor:
    shape = table.integers(0, "i")
    type_ = _checked_index(table, 1, "b", len(TYPES), "type of elements with the number")
    quantisation = table.table(4)
    scales: tuple[float, ...] = ()
    zeros: tuple[int, ...] = ()
    axis = 0
    if quantisation is not None:
        scales, zeros, axis = quantisation.reals(2), quantisation.integers(3, "q"), quantisation.integer(6, "i")
    return TFLiteTensor(
        table.text(3),
        _decode_spec(table, type_, shape),
        type_,
        _checked_index(table, 2, "I", buffers, "buffer"),
        bool(table.integer(5, "B")),
        table.integers(7, "i"),
        scales,
        zeros,
        axis,
        table.offset_target(6) is not None or bool(table.integer(10, "I")),
    )


def _decode_spec(table: Table, type_: int, shape: tuple[int, ...]) -> Spec:
    element = TYPES[type_]
    if type_ == RESOURCE:
        return RESOURCE_SPEC
    if len(shape) > MAX_RANK:
        raise table.wire.format_error(table.at, f"a tensor with {len(shape)} axes")
    if not isinstance(element, DType):
        return Unplannable(f"{element} has no fixed size", element, shape)
    try:
        return TensorSpec(element, shape)
    except SubletError as error:
        raise table.wire.format_error(table.at, f"a tensor: {error}") from error


def _decode_operator(table: Table, codes: list[str], count: int) -> Operator:
    name = codes[_checked_index(table, 0, "I", len(codes), "operator code")]
    options: dict[str, int] = {}
    texts: tuple[str, ...] = ()
    options_table = table.table(4)
    if options_table is not None:
        options = {option: options_table.integer(number, "i") for option, number in OPTIONS.get(name, ())}
        texts = (options_table.text(0), options_table.text(1)) if name == "VAR_HANDLE" else ()
    return Operator(
        name,
        _tensor_positions(table, 1, count),
        _tensor_positions(table, 2, count),
        options,
        texts,
        _tensor_positions(table, 8, count),
    )
