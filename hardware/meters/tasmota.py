"""Plugs with the Tasmota firmware over HTTP.

    /cm?cmnd=Status%208   {"StatusSNS":{"Time":"2024-01-01T00:00:00","ENERGY":{"Total":3.705,"Power":5,
                           "ApparentPower":6,"ReactivePower":3,"Factor":0.83,"Voltage":233,"Current":0.025}}}

Power is in watts, the total in kilowatt-hours. By default the firmware rounds power to whole watts, which is coarse for
a board: `WattRes 3` in its console gives three digits. A plug with a password is not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from sparsyedge.hardware.meters.plug import PlugMeter, number_of, table_of

__all__ = ["TasmotaMeter"]


class TasmotaMeter(PlugMeter):
    """Joules of a board whose power supply is in a plug with Tasmota."""

    name: str = "tasmota"
    priority: int = 5
    # Whole watts repeat for minutes, idle and busy, on a small board: no reason to call the plug stuck.
    sticks: bool = False
    needs: str = "it needs `[meters.plug]` with `address` and `feeds`, and a plug with Tasmota that answers there"
    paths: ClassVar[tuple[str, ...]] = ("/cm?cmnd=Status%208",)

    def watts_of(self, answer: Mapping[str, Any]) -> float:
        """The power in an answer to `Status 8`."""
        energy = table_of(table_of(answer, "StatusSNS"), "ENERGY")
        return self.checked(
            number_of(energy, "Power"),
            volts=number_of(energy, "Voltage") if "Voltage" in energy else None,
            amperes=number_of(energy, "Current") if "Current" in energy else None,
            total_wh=1000 * number_of(energy, "Total"),
        )
