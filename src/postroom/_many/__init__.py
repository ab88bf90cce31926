"""Rooms with many stores: one for each tenant (decision 0016)."""
