"""A minimal initramfs that finds the disk of an emulated board: busybox, some kernel modules, one script."""

from __future__ import annotations

import gzip
import io
import lzma
from pathlib import Path

from sparsyedge.edge.errors import ConfigError

__all__ = ["make_initramfs"]

# Not built into a Debian kernel: drivers for the disk, its file systems, the network and random numbers.
MODULES = ("virtio_mmio", "virtio_blk", "ext4", "crc32c_generic", "vfat", "nls_ascii", "nls_cp437")
MORE_MODULES = ("virtio_net", "virtio_rng", "autofs4")
FILE, FOLDER, DEVICE = 0o100000, 0o040000, 0o020000
INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc p /proc; $b mount -t sysfs s /sys; $b mount -t devtmpfs d /dev
for module in @MODULES@; do $b insmod /mod/$module.ko; done
while [ ! -b /dev/vda2 ]; do $b sleep 0.2; done
$b mount -t ext4 /dev/vda2 /root || exec $b sh
for place in dev proc sys; do $b mount -o move /$place /root/$place; done
exec $b switch_root /root /sbin/init
"""


def make_initramfs(tree: Path) -> bytes:
    """Build a gzipped cpio archive from an unpacked Debian with linux-image-arm64 and busybox-static."""
    modules = _with_dependencies(tree)
    archive = io.BytesIO()
    files: list[tuple[str, int, bytes]] = [
        (name, FOLDER | 0o755, b"") for name in ("bin", "dev", "proc", "sys", "root", "mod")
    ]
    files.append(("bin/busybox", FILE | 0o755, (tree / "usr/bin/busybox").read_bytes()))
    files.append(("dev/console", DEVICE | 0o600, b""))
    files += [(f"mod/{name}.ko", FILE | 0o644, content) for name, content in modules.items()]
    files.append(("init", FILE | 0o755, INIT.replace("@MODULES@", " ".join(modules)).encode()))
    for number, (name, mode, content) in enumerate(files, start=1):
        _add(archive, number, name, mode, content)
    _add(archive, 0, "TRAILER!!!", 0, b"")
    return gzip.compress(archive.getvalue(), 1)


def _with_dependencies(tree: Path) -> dict[str, bytes]:
    """The modules in load order, without those built into the kernel."""
    found = {path.name.split(".ko")[0].replace("-", "_"): path for path in (tree / "usr/lib/modules").rglob("*.ko*")}
    if not found:
        raise ConfigError(f"{tree} has no kernel modules; build it with linux-image-arm64")
    loaded: dict[str, bytes] = {}

    def load(name: str) -> None:
        path = found.get(name.replace("-", "_"))
        if path is None or name in loaded:
            return
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        for needed in _depends(content):
            load(needed.replace("-", "_"))
        loaded[name] = content

    for name in (*MODULES, *MORE_MODULES):
        load(name)
    return loaded


def _depends(module: bytes) -> list[str]:
    start = module.index(b"\0depends=") + len(b"\0depends=")
    names = module[start : module.index(b"\0", start)].decode()
    return [name for name in names.split(",") if name]


def _add(archive: io.BytesIO, number: int, name: str, mode: int, content: bytes) -> None:
    """Add one entry in the kernel's format ("newc"); /dev/console is device 5,1."""
    encoded = name.encode() + b"\0"
    device = (5, 1) if mode & DEVICE and not mode & FOLDER else (0, 0)
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(encoded), 0)
    archive.write(b"070701" + b"".join(b"%08X" % field for field in fields) + encoded)
    archive.write(bytes(-archive.tell() % 4))
    archive.write(content)
    archive.write(bytes(-archive.tell() % 4))
