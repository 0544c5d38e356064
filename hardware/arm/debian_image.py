"""A small Debian 13 image for an emulated 64-bit board, laid out as Raspberry Pi OS Trixie is, from an unpacked tree.

No root file system is mounted and no loop device is used: mke2fs fills the root partition from the tree, and our own
FAT code fills the boot partition. Maintainer scripts have not run; what booting needs of them is in `complete`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sparsyedge.edge.errors import ConfigError
from sparsyedge.hardware.arm import tree as debian
from sparsyedge.hardware.arm.build_steps import run_build
from sparsyedge.hardware.arm.initramfs import make_initramfs
from sparsyedge.hardware.flash.stock_image import boot_volume

__all__ = ["build_image", "complete"]

SUITE = "trixie"
PACKAGES = (
    "systemd-sysv", "systemd-resolved", "dbus", "udev", "kmod", "cloud-init", "netplan.io", "netcat-openbsd",
    "iproute2", "passwd", "mount", "util-linux", "hostname", "mawk", "bash", "sed", "grep", "findutils", "tar", "gzip",
    "linux-image-arm64", "busybox-static",
    # What the settings of a card need, and Raspberry Pi OS has: users who log in, their language and their keyboard.
    "openssh-server", "sudo", "login", "locales", "tzdata", "keyboard-configuration", "console-setup", "e2fsprogs",
)  # fmt: skip
IMAGE_NAME, KERNEL_NAME, INITRAMFS_NAME = "stock.img", "vmlinuz", "initramfs.gz"
MEGABYTE = 1 << 20
BOOT_MB, ROOT_MB = 256, 1100
# Debian services that take minutes on an emulated processor.
MASKED = (
    "systemd-hwdb-update.service", "systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount", "getty@.service",
    "systemd-networkd-wait-online.service", "e2scrub_reap.service", "e2scrub_all.timer", "apt-daily.timer",
    "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer", "systemd-journald-audit.socket",
)  # fmt: skip
BOOT_FILES = {
    "cmdline.txt": "console=ttyAMA0 root=/dev/vda2 rw audit=0 systemd.firstboot=off\n",
    "config.txt": "arm_64bit=1\n",
    "user-data": "#cloud-config\n",
    "meta-data": "instance-id: stock-image\n",
    "network-config": "version: 2\n",
}
# pam-auth-update would write these.
PAM = {
    "auth": ("auth required pam_unix.so",),
    "account": ("account required pam_unix.so",),
    "password": ("password required pam_unix.so yescrypt",),
    "session": ("session required pam_unix.so",),
    "session-noninteractive": ("session required pam_unix.so",),
}
# As on Raspberry Pi OS: cloud-init reads only the boot partition.
CLOUD_CONFIG = """\
datasource_list: [NoCloud, None]
datasource:
  NoCloud:
    seedfrom: file:///boot/firmware/
"""


def build_image(out: Path) -> None:
    """Make the folder `out` with the image, plus the kernel and initramfs, which qemu loads directly."""
    if out.exists():
        raise ConfigError(f"{out} exists; remove it, or name another folder")
    for program, package in (("mke2fs", "e2fsprogs"), ("mkfs.vfat", "dosfstools"), ("sfdisk", "fdisk")):
        if _program(program) is None:
            raise ConfigError(f"no {program} here; on Debian: apt-get install {package}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        work, made = Path(folder), Path(folder) / "made"
        made.mkdir()
        root = work / "root"
        debian.build(root, None, suite=SUITE, more=PACKAGES)
        (made / INITRAMFS_NAME).write_bytes(make_initramfs(root))
        kernel = next((root / "boot").glob("vmlinuz-*")).read_bytes()
        (made / KERNEL_NAME).write_bytes(kernel)
        complete(root)
        _assemble(root, kernel, made / IMAGE_NAME, work)
        made.rename(out)


def complete(root: Path) -> None:
    """Do the part of the maintainer scripts' work that the first boot needs."""
    aliases = (root / "usr/share/locale/locale.alias").read_bytes()
    for bulk in ("usr/lib/modules", "usr/share/doc", "usr/share/man", "usr/share/locale", "boot", "proc", "sys"):
        shutil.rmtree(root / bulk)
        (root / bulk).mkdir()
    # locale-gen reads it.
    (root / "usr/share/locale/locale.alias").write_bytes(aliases)
    etc = root / "etc"
    masters = root / "usr/share/base-passwd"
    users = (masters / "passwd.master").read_text().replace(":*:", ":x:")
    (etc / "passwd").write_text(users)
    shutil.copy(masters / "group.master", etc / "group")
    (etc / "shadow").write_text("".join(f"{line.split(':')[0]}:*:19000:0:99999:7:::\n" for line in users.splitlines()))
    (etc / "shadow").chmod(0o640)
    for link, target in {"nc": "nc.openbsd", "awk": "mawk"}.items():
        (root / "usr/bin" / link).unlink(missing_ok=True)
        (root / "usr/bin" / link).symlink_to(target)
    certificates = sorted((root / "usr/share/ca-certificates/mozilla").glob("*.crt"))
    (etc / "ssl/certs/ca-certificates.crt").write_bytes(b"".join(path.read_bytes() for path in certificates))
    for name in ("resolv.conf", "hostname"):
        (etc / name).unlink(missing_ok=True)
    # This value makes systemd treat the boot as the first one and enable every service from the packages.
    (etc / "machine-id").write_text("uninitialized\n")
    (root / "boot/firmware").mkdir()
    (etc / "fstab").write_text("/dev/vda1 /boot/firmware vfat defaults 0 2\n/dev/vda2 / ext4 defaults,noatime 0 1\n")
    (etc / "cloud/cloud.cfg.d/99_raspberry-pi.cfg").write_text(CLOUD_CONFIG)
    (etc / "systemd/system").mkdir(parents=True, exist_ok=True)
    for unit in MASKED:
        (etc / "systemd/system" / unit).symlink_to("/dev/null")
    _complete_logins(root)


def _complete_logins(root: Path) -> None:
    """What lets a user in over ssh: PAM's common files, sshd's configuration and its own user."""
    etc = root / "etc"
    for kind, modules in PAM.items():
        (etc / "pam.d" / f"common-{kind}").write_text("".join(f"{line}\n" for line in modules))
    shutil.copy(root / "usr/share/openssh/sshd_config", etc / "ssh/sshd_config")
    for name, line in {
        "passwd": "sshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n",
        "shadow": "sshd:!:19000::::::\n",
    }.items():
        with (etc / name).open("a") as file:
            file.write(line)
    (etc / "locale.gen").write_text("# one locale per line\n")


def _assemble(root: Path, kernel: bytes, image: Path, work: Path) -> None:
    boot, system = work / "boot.fat", work / "root.ext4"
    _run("mke2fs", "-q", "-t", "ext4", "-d", str(root), "-L", "rootfs", str(system), f"{ROOT_MB}M")
    with boot.open("wb") as file:
        file.truncate(BOOT_MB * MEGABYTE)
    # 1 KB clusters, because FAT32 needs at least 65 525 of them.
    _run("mkfs.vfat", "-F", "32", "-s", "2", "-n", "BOOTFS", str(boot))
    with image.open("wb") as file:
        for start_mb, part in ((1, boot), (1 + BOOT_MB, system)):
            file.seek(start_mb * MEGABYTE)
            with part.open("rb") as source:
                _copy_sparse(source.fileno(), file.fileno(), start_mb * MEGABYTE, part.stat().st_size)
        file.truncate((2 + BOOT_MB + ROOT_MB) * MEGABYTE)
    sectors = [number * 2048 for number in (1, BOOT_MB, 1 + BOOT_MB, ROOT_MB)]
    table = "label: dos\nstart={},size={},type=c,bootable\nstart={},size={},type=83\n".format(*sectors)
    _run("sfdisk", "-q", str(image), text=table)
    with boot_volume(image, writable=True) as volume:
        volume.write("kernel8.img", kernel)
        for name, content in BOOT_FILES.items():
            volume.write(name, content.encode())


def _copy_sparse(source: int, target: int, offset: int, size: int) -> None:
    """Copy only blocks that hold data: most of a new file system is empty."""
    empty = bytes(MEGABYTE)
    for place in range(0, size, MEGABYTE):
        piece = os.pread(source, MEGABYTE, place)
        if piece != empty[: len(piece)]:
            os.pwrite(target, piece, offset + place)


def _program(name: str) -> str | None:
    # Debian leaves these off ordinary users' PATH, although anyone may run them on files.
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _run(program: str, *arguments: str, text: str | None = None) -> None:
    subprocess.run(
        [_program(program) or program, *arguments], input=text, text=True, check=True, stdout=subprocess.DEVNULL
    )


def main(argv: list[str]) -> int:
    """Build the image and say how long it took."""
    parser = argparse.ArgumentParser(prog="python -m sparsyedge.hardware.arm.debian_image", description=__doc__)
    parser.add_argument("out", type=Path, help="the folder to make")
    options = parser.parse_args(argv)

    def build() -> str:
        build_image(options.out)
        return f"{options.out}: Debian {SUITE} for an emulated board"

    return run_build(build)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
