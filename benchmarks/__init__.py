"""Whole runs and measurements: the only folder that may import all the others."""
