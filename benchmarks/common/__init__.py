"""What several benchmarks share: the machine they ran on, paired intervals, progress on a terminal."""
