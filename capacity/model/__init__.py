"""State the formulas of the capacity model: demand, workers, links, lengths, staleness."""
