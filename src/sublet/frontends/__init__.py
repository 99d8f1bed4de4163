"""Front-ends: importers of model files, one package per format, each returning a graph in Sublet's IR."""
