"""ONNX: the reader, the facts of its operators, kernels of ONNX Runtime, and plans in the metadata of a file."""

from sublet.integrations.registry import Integration

INTEGRATION = Integration(
    "onnx",
    suffixes=(".onnx",),
    read_model="sublet.integrations.onnx.reader.reading:read_file",
    options=("dims", "optimize", "assume", "const", "loop_limits"),
    object_attributes=("graph", "opset_import"),
    read_object="sublet.integrations.onnx.reader.reading:read_object",
    optimize_levels=("onnxruntime-basic", "onnxruntime-extended", "onnxruntime"),
    optimizer_package="onnxruntime",
    optimizer_versions="sublet.integrations.onnx.reader.runtime_optimizer:rewriting_environment",
    embedded_plan="sublet.integrations.onnx.plan_reader:read_embedded_plan",
    embedded_options="sublet.integrations.onnx.plan_reader:read_embedded_options",
    dialects={
        "onnx": "sublet.integrations.onnx.dialect:onnx_op",
        "cache": "sublet.integrations.onnx.cache_ops:cache_op",
    },
    grow_in_loops="sublet.integrations.onnx.growing_caches:with_buffers_in_loops",
    grow_in_place="sublet.integrations.onnx.growing_caches:with_caches_in_place",
    backends={
        "onnxruntime": "sublet.integrations.onnx.kernels.backend:backend_for",
        "numpy": "sublet.integrations.onnx.kernels.numpy:backend_for",
    },
    packages={"onnxruntime": "onnxruntime"},
    node_bytes=14 << 10,
    reference_kernels={"onnx": "sublet.integrations.onnx.kernels.reference:reference_kernel"},
    channel_blocks="sublet.integrations.onnx.reader.runtime_optimizer:channel_blocks",
    region_splits=("sublet.integrations.onnx.region_split:propose_splits",),
    exporters={"onnx": "sublet.integrations.onnx.exporter:embed_plan"},
)
