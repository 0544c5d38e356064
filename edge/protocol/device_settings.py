"""What a device says of itself beside its status: its machine and the limits that its owner set. No I/O."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from sparsyedge.edge.cores import MAX_THREADS

__all__ = ["MAX_WORD", "DeviceSettings"]

MAX_WORD = 40

Word = Annotated[str, msgspec.Meta(max_length=MAX_WORD)]


class DeviceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Only for people to read: nothing that is trained or averaged depends on it."""

    python: Word | UnsetType = UNSET
    machine: Word | UnsetType = UNSET
    """The processor's architecture, such as aarch64."""
    runtime: Word | UnsetType = UNSET
    """`training` with onnxruntime-training, `stock` with any other onnxruntime."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=MAX_THREADS)] | UnsetType = UNSET
    meter: Word | UnsetType = UNSET
    """The source of its joules."""
    max_temperature_c: Annotated[float, msgspec.Meta(ge=0, le=200)] | UnsetType = UNSET
    min_battery_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] | UnsetType = UNSET
    only_on_charger: bool | UnsetType = UNSET
    wifi_only: bool | UnsetType = UNSET
    finds_broker: bool | UnsetType = UNSET
    """Whether it looks for its broker on the local network."""

    def words(self) -> dict[str, str]:
        """The texts among them, by name."""
        return {name: value for name in self.__struct_fields__ if isinstance(value := getattr(self, name), str)}

    def __str__(self) -> str:
        """The settings in words; empty if the device said none."""
        parts = [
            f"Python {self.python}" if self.python else "",
            self.machine or "",
            f"runtime {self.runtime}" if self.runtime else "",
            f"{self.threads} thread{'s' * (self.threads != 1)}" if self.threads else "",
            f"meter {self.meter}" if self.meter else "",
            f"trains below {self.max_temperature_c:g} C" if self.max_temperature_c else "",
            f"and from {self.min_battery_percent:g} % battery on" if self.min_battery_percent else "",
            "only on a charger" if self.only_on_charger else "",
            "only on Wi-Fi" if self.wifi_only else "",
            "finds its broker" if self.finds_broker else "",
        ]
        return ", ".join(part for part in parts if part)
