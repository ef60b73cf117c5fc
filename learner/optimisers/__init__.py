"""Turn gradients into changes of parameters: optimisers of optax, learning rates, and moments in few bits."""
