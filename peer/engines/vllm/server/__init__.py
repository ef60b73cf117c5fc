"""The program that runs inside vLLM's Python environment.

It imports the standard library, numpy, torch, vllm and rollcast.policy.noise: no other package of Rollcast is there.
"""
