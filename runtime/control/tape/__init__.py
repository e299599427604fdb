"""A small network as a tape that compiled code runs: for decisions, which onnxruntime takes long to begin."""
