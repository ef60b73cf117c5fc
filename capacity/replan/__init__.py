"""Plan again while a run goes on."""
