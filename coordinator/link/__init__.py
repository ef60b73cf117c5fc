"""The connection between a gateway, which serves peers, and the core, which decides: frames, and what each end does."""
