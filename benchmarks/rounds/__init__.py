"""Many devices in one round: how fast, how much memory, and whether anything is lost."""

__all__: list[str] = []
