"""Send the figures of each learner step to files, TensorBoard and Weights & Biases."""
