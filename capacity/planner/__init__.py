"""Find the cheapest set of workers and prove how near to the optimum it is."""
