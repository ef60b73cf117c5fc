"""Run the scorer process, which scores completions for coordinators over HTTP, behind a check of the kind `http`."""
