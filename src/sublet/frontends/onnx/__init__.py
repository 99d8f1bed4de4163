"""ONNX models in; `model.load` is the way."""
