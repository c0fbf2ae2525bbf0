"""What the service costs and how well it finds, each figure beside its limit.

``python -m benchmarks`` runs a moderate selection; docs/benchmarks.md explains all of it.
"""
