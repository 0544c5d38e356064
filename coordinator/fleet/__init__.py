"""The loop of a run, and everything it exchanges with the fleet."""
