"""Shape rules beyond ONNX's shape inference: constraints on the shapes of a node. `table.RULES` lists all rules."""
