"""Postroom on PostgreSQL beside its peers and a raw loop: `python -m benchmarks.postgres`."""
