"""TensorFlow Lite: decodes flatbuffers, converts models to graphs, reads and writes offline memory plans."""

from sublet.integrations.registry import Integration

INTEGRATION = Integration(
    "tflite",
    suffixes=(".tflite",),
    read_model="sublet.integrations.tflite.reader:read_file",
    alignment=16,
    embedded_plan="sublet.integrations.tflite.plan_offsets:read_embedded_plan",
    dialects={"tflite": "sublet.integrations.tflite.dialect:tflite_op"},
    commands={"export tflm": "sublet.integrations.tflite.export_command:export_tflm"},
)
