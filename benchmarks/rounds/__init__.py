"""Measures one round with many devices: speed, memory, and whether anything is lost."""

__all__: list[str] = []
