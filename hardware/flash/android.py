"""A phone's bundle for Termux: one shell script with the payload appended after its last line. Experimental.

The phone runs the same wheels as a Raspberry Pi, in a Debian that proot-distro installs, because onnxruntime and numpy
have no wheels for Android itself. Termux:API reports battery, charger and Wi-Fi; Termux:Boot starts the device after
the phone restarts.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sparsyedge.edge.errors import FlashError
from sparsyedge.edge.security.enrolment_messages import DEVICE_FILE_NAME, DeviceFile
from sparsyedge.edge.storage import write_atomically
from sparsyedge.hardware.flash.first_boot import LAUNCHER
from sparsyedge.hardware.flash.wheel_hashes import Signer, device_wheels
from sparsyedge.hardware.flash.wheelhouse import PYTHONS

__all__ = ["make_bundle"]

_SOURCE = Path(__file__).with_name("phone")
_INSTALLER = Path(__file__).with_name("card") / "install_wheels.sh"
_MARK = b"@PAYLOAD_OFFSET@"
_OFFSET_DIGITS = 16


def make_bundle(
    out: Path | None, device: DeviceFile, *, wheelhouse: Path, sign: Signer, data: Sequence[Path] = ()
) -> Path:
    """Write one phone's bundle; only its owner can read it, since it holds a token."""
    path = out or Path(f"sparsyedge-{device.device}.sh")
    if path.exists():
        raise FlashError(f"{path} exists; remove it, or choose another name with --out")
    script = (_SOURCE / "bundle.sh").read_bytes()
    # The number is as long as its placeholder, so inserting it does not shift the payload. tail counts from 1.
    offset = f"{len(script) + 1:0{_OFFSET_DIGITS}d}".encode()
    assert len(offset) == len(_MARK)
    # Wheels for both Pythons: the phone's proot-distro decides which Debian it installs.
    payload = _payload(device, device_wheels(wheelhouse, PYTHONS, sign), data)
    write_atomically(path, script.replace(_MARK, offset) + payload, private=True)
    return path


def _payload(device: DeviceFile, wheels: dict[str, bytes], data: Sequence[Path]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in ("setup.sh", "run.sh"):
            _add(archive, name, (_SOURCE / name).read_bytes())
        for path in (_INSTALLER, LAUNCHER):
            _add(archive, path.name, path.read_bytes())
        _add(archive, DEVICE_FILE_NAME, msgspec.json.encode(device))
        for name, wheel in wheels.items():
            _add(archive, f"wheels/{name}", wheel)
        for path in data:
            _add(archive, f"data/{path.name}", path.read_bytes())
    return content.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = 0o600
    archive.addfile(entry, io.BytesIO(content))
