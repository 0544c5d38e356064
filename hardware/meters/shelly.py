"""Shelly plugs over HTTP: the RPC of the second generation and later, else the first generation's `/meter`.

    /rpc/Switch.GetStatus?id=0   {"id":0,"output":true,"apower":3.1,"voltage":230.2,"current":0.031,
                                  "aenergy":{"total":1234.567,"by_minute":[51.2,51.0,50.8],"minute_ts":1700000000}}
    /meter/0                     {"power":3.12,"is_valid":true,"timestamp":1700000000,"counters":[3.1,3.0,3.1],
                                  "total":74074}

Power is in watts; totals are watt-hours in the first form and watt-minutes in the second. A plug with a password is not
supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from sparsyedge.hardware.meters.plug import PlugMeter, number_of, table_of
from sparsyedge.hardware.meters.sampler import NoReading

__all__ = ["ShellyMeter"]


class ShellyMeter(PlugMeter):
    """Joules of a board whose power supply is in a Shelly plug."""

    name: str = "shelly"
    priority: int = 6
    sticks: bool = True
    needs: str = "it needs `[meters.plug]` with `address` and `feeds`, and a Shelly that answers there"
    paths: ClassVar[tuple[str, ...]] = (
        "/rpc/Switch.GetStatus?id={switch}",
        "/rpc/PM1.GetStatus?id={switch}",
        "/meter/{switch}",
    )

    def watts_of(self, answer: Mapping[str, Any]) -> float:
        """The power in an answer of either generation."""
        if "apower" in answer:
            return self.checked(
                number_of(answer, "apower"),
                volts=number_of(answer, "voltage") if "voltage" in answer else None,
                amperes=number_of(answer, "current") if "current" in answer else None,
                total_wh=number_of(table_of(answer, "aenergy"), "total"),
            )
        watts = number_of(answer, "power")
        if answer.get("is_valid") is not True:
            raise NoReading("the plug itself says that its reading is not valid")
        return self.checked(watts, total_wh=number_of(answer, "total") / 60)
