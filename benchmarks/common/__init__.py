"""Shared by several benchmarks: facts about the machine, paired intervals, progress on a terminal."""
