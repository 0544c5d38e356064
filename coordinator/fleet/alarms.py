"""What is wrong about a device beyond a message of it: an identity that two use, tasks that somebody forged. No I/O."""

from __future__ import annotations

from sparsyedge.edge.protocol.messages import DeviceStatus

__all__ = ["Alarms"]

AGAIN_S = 60.0
"""A device says what it likes as often as it likes; its alarms change once a minute."""
TWINS_S = 600.0
"""Two that share an identity push each other off the broker every few seconds; once that ends, it is forgotten."""
KEPT_BOOTS = 4
SHOWN = 12
"""Characters of a boot id."""


class Alarms:
    """Remembers the last starts of every device, and what was said of it."""

    def __init__(self) -> None:
        self._boots: dict[str, list[str]] = {}
        self._twins: dict[str, tuple[str, str, float]] = {}
        self._said: dict[str, tuple[str, float]] = {}

    def note(self, device: str, status: DeviceStatus, now_s: float) -> str | None:
        """What is to be said now of a device that has sent this status; None where nothing is new."""
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
        """A start of a device that comes back after a later one has not ended: two devices have one identity."""
        boots = self._boots.setdefault(device, [])
        if boots and boots[-1] == boot_id:
            return
        if boot_id in boots:
            boots.remove(boot_id)
            # Sorted, since they take turns.
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
