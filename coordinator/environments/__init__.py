"""Play episodes: environments in trusted processes beside the coordinator, never on donors' machines."""
