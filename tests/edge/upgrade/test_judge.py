"""What a device refuses before it fetches a byte."""

from __future__ import annotations

import pytest

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.releases import Release, ReleaseFile, WheelSet
from sparsyedge.edge.upgrade import judge
from sparsyedge.edge.upgrade.judge import SPARE_BYTES, Machine, version_key

FILE = ReleaseFile(name="sparsyedge-2.0-py3-none-any.whl", sha256="ab" * 32, bytes=1000)
WHEELS = WheelSet(python="3.11", machine="aarch64", files=(FILE,), installed_bytes=4000)
RELEASE = Release(fleet="lab", version=5, software="2.0", issued_unix_s=100.0, expires_unix_s=200.0, sets=(WHEELS,))


def test_a_fresh_release_for_this_machine_is_taken() -> None:
    assert judge.fitting_set(RELEASE, Machine("3.11", "aarch64")) is WHEELS
    judge.check_fresh(RELEASE, now_unix_s=200.0, seen=5)
    judge.check_newer(RELEASE, "1.9")
    judge.check_newer(RELEASE, "2.0")
    judge.check_room(WHEELS, fetched=0, free_bytes=SPARE_BYTES + 7000)


@pytest.mark.parametrize("machine", [Machine("3.13", "aarch64"), Machine("3.11", "x86_64")])
def test_a_release_for_another_machine_is_refused_with_both_named(machine: Machine) -> None:
    with pytest.raises(SecurityError, match=rf"is for Python 3.11 on aarch64, this device has {machine}"):
        judge.fitting_set(RELEASE, machine)


def test_an_expired_release_is_refused() -> None:
    with pytest.raises(SecurityError, match=r"has expired 1\.0 days ago"):
        judge.check_fresh(RELEASE, now_unix_s=200.0 + 86_400, seen=5)


def test_an_earlier_release_sent_again_is_refused() -> None:
    with pytest.raises(SecurityError, match="its version is 5, this device has seen 6"):
        judge.check_fresh(RELEASE, now_unix_s=150.0, seen=6)


def test_a_release_older_than_installed_is_refused() -> None:
    with pytest.raises(SecurityError, match=r"release 2\.0 is older than installed, which is 2\.0\.1"):
        judge.check_newer(RELEASE, "2.0.1")


def test_a_release_that_leaves_no_room_to_spare_is_refused() -> None:
    with pytest.raises(SecurityError, match="too large for the disk"):
        judge.check_room(WHEELS, fetched=0, free_bytes=SPARE_BYTES + 6999)
    judge.check_room(WHEELS, fetched=1, free_bytes=SPARE_BYTES + 6999)


def test_versions_are_ordered_as_pip_orders_them() -> None:
    ordered = ["0.3", "0.4.dev0", "0.4.0.dev1", "0.4.0a1", "0.4b2", "0.4rc1", "0.4.0", "0.4.post1", "0.4.1", "0.10"]
    shuffled = ordered[5:] + ordered[:5]
    assert sorted(shuffled, key=version_key) == ordered
    assert version_key("1.0") == version_key("1") == version_key("1.0.0+local")
    assert version_key("nonsense") < version_key("0.0.1.dev0")
