"""What ONNX demands of a node's shapes beyond what its own shape inference checks; `table.RULES` has them all."""
