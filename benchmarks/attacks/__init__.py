"""Measures how much accuracy hostile members cost, per aggregation rule."""
