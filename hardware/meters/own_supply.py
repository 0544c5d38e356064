"""Which board an external meter feeds: its joules are that board's, and nobody else's."""

from __future__ import annotations

from sparsyedge.edge.device.energy import MeterSettings
from sparsyedge.edge.errors import ConfigError

__all__ = ["require_own"]


def require_own(meter: str, table: str, feeds: str, settings: MeterSettings) -> None:
    """Raise ConfigError unless what the meter feeds is this device."""
    if feeds != settings.device:
        raise ConfigError(
            f"{meter} (`[{table}]`) feeds {feeds}, and this device is {settings.device or 'nameless'}: its joules "
            "would be another board's; correct `feeds` or remove the table"
        )
