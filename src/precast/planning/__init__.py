"""What an engine can serve: KV memory, predicted latencies, and the best settings for a workload.

Predictions are simulations: the scheduler and the KV cache of the runtime in virtual time, with step costs that were
measured when the engine was built, or now. What `precast plan` calls; docs/planning.md.
"""
