"""Processes that verify updates and sum stretches of the model for the leader, which alone decides."""

__all__: list[str] = []
