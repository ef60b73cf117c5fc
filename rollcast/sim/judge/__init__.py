"""Judge a simulation by the invariants of the product."""
