"""Measure the learner, the sampler and the precision flow: speed, memory and agreement."""
