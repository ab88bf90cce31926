"""Measurements of speed, beside raw limits in the same run. Not part of the package."""
