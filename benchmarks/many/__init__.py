"""Rooms over many stores: what idle stores cost, and how tenants affect each other (decision 0016)."""
