"""TensorFlow Lite front-end: decodes flatbuffers, converts models to graphs, reads and writes offline memory plans."""
