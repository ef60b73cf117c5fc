"""Open a run's durable store, or a reader of it, in SQLite or PostgreSQL; decide which coordinator leads."""
