"""Generate rollouts with vLLM, which runs in processes of its own."""
