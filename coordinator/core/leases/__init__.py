"""Keep the books of prompt groups, slots, attempts and batches."""
