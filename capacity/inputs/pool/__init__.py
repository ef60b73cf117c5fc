"""Read, check and complete the rows of a pool of workers: from files, a running run, or a price catalogue."""
