"""Whole runs and measurements; no other folder may import all the rest."""
