"""Alarms about a device itself rather than one of its messages: a shared identity, forged tasks. No I/O."""

from __future__ import annotations

from sparsyedge.edge.protocol.messages import DeviceStatus

__all__ = ["Alarms"]

AGAIN_S = 60.0
"""A device may send status as often as it likes; we update its alarm once a minute at most."""
TWINS_S = 600.0
"""Two devices with one identity push each other off the broker every few seconds. The alarm ends this long after."""
KEPT_BOOTS = 4
SHOWN = 12
"""Characters shown of a boot id."""


class Alarms:
    """Remembers the last boots of every device and the alarm last raised for it."""

    def __init__(self) -> None:
        self._boots: dict[str, list[str]] = {}
        self._twins: dict[str, tuple[str, str, float]] = {}
        self._said: dict[str, tuple[str, float]] = {}

    def note(self, device: str, status: DeviceStatus, now_s: float) -> str | None:
        """Take in a status; returns the device's alarm if it changed, empty if it cleared, else None."""
        if status.state != "online":
            return None
        self._note_boot(device, status.boot_id, now_s)
        alarm = "; ".join(text for text in (self._twin_text(device, now_s), status.alarm) if text)
        said, until_s = self._said.get(device, ("", 0.0))
        if alarm == said or (said and now_s < until_s):
            return None
        self._said[device] = (alarm, now_s + AGAIN_S)
        return alarm

    def _note_boot(self, device: str, boot_id: str, now_s: float) -> None:
        """Notice an earlier boot that comes back after a later one: two devices share one identity."""
        boots = self._boots.setdefault(device, [])
        if boots and boots[-1] == boot_id:
            return
        if boot_id in boots:
            boots.remove(boot_id)
            # Sorted, because the two take turns.
            first, second = sorted((boots[-1], boot_id))
            self._twins[device] = (first, second, now_s)
        boots.append(boot_id)
        del boots[:-KEPT_BOOTS]

    def _twin_text(self, device: str, now_s: float) -> str:
        first, second, seen_s = self._twins.get(device, ("", "", -TWINS_S))
        if now_s - seen_s >= TWINS_S:
            return ""
        return (
            f"connected twice with one identity (boot ids {first[:SHOWN]} and {second[:SHOWN]}); revoke {device} and "
            f"enrol one of the two again"
        )
