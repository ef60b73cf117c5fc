"""The uplink of a cell: a peer of the head, and in the learner's place at the cell's coordinator (docs/scale.md)."""
