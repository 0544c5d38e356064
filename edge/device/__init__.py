"""The agent that answers each round, and what it needs: files, limits, meters, and what survives a restart."""
