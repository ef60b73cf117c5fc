"""Write the metrics of each learner step to files, TensorBoard and Weights & Biases."""
