"""Generate rollouts with an SGLang server that the machine's owner runs."""
