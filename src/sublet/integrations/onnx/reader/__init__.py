"""ONNX front-end: imports ONNX models as graphs. The entry point is `model.from_proto`."""
