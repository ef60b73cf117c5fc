"""Store rollouts, scores, batches and events durably in SQLite, bounded, with readers."""
