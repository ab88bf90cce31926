"""Postroom on Redis beside its peers and a raw loop: `python -m benchmarks.redis`."""
