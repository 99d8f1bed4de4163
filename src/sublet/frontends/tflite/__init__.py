"""TensorFlow Lite models in: a flatbuffer as records, the records as a model, and the memory plan that it may carry."""
