"""Ship real data with the planner: each folder of ``data`` has a README with its origin, date and licence.

    gpus          memory, bandwidth and arithmetic of GPUs
    models        sizes of models and of their caches
    prices        offers of rented GPUs, and what a run pays for besides them
    step_times    seconds of a learner's step
    egress        prices of traffic that leaves a cloud region
    token_lengths lengths of a reasoning model's, a chat's and a code service's requests
    served        milliseconds per token of serving engines, measured and modelled
    origins       where all of that is from

Everything is read on first use and kept.
"""
