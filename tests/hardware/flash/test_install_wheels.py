"""What a board or a phone installs: the script that runs there, with real openssl, sha256sum, venv and pip."""

from __future__ import annotations

import ensurepip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fixtures.wheelhouses import add_installable_wheel

from sparsyedge.edge.security.enrolment_messages import DeviceFile, write_device_file
from sparsyedge.hardware import flash
from sparsyedge.hardware.flash.wheel_hashes import device_wheels

SCRIPT = Path(flash.__file__).with_name("card") / "install_wheels.sh"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OURS = "sparsyedge-0.1.0-py3-none-any.whl"

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """A folder as a card has it: wheels with a signed list, and the device's file."""
    house = tmp_path / "house"
    add_installable_wheel(house, OURS, "helper>=1", code="import helper\nVERSION = '0.1.0'\n")
    add_installable_wheel(house, "helper-1.5-py3-none-any.whl")
    shutil.copy(next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")), house)
    wheels = tmp_path / "card" / "wheels"
    wheels.mkdir(parents=True)
    for name, content in device_wheels(house, (PYTHON,), lambda made: KEY.sign(made.content)).items():
        (wheels / name).write_bytes(content)
    device = DeviceFile(
        version=1,
        device="pi-07",
        fleet="lab",
        host="coordinator.local",
        port=8883,
        enrol_port=8884,
        ca="",
        signing_key=KEY.public_key().public_bytes_raw().hex(),
    )
    write_device_file(tmp_path / "card" / "device.json", device)
    return tmp_path / "card"


def install(card: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.base_prefix) / 'bin'}:{os.environ['PATH']}"
    command = ["sh", str(SCRIPT), "wheels", "device.json", str(card / "venv")]
    environment = {"PATH": path, "HOME": str(card)}
    return subprocess.run(command, cwd=card, env=environment, capture_output=True, text=True, timeout=300)


def version(card: Path) -> str:
    command = [str(card / "venv/bin/python"), "-c", "import sparsyedge; print(sparsyedge.VERSION)"]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, check=True).stdout.strip()


def refused(card: Path) -> str:
    done = install(card)
    assert done.returncode == 1, done.stderr
    assert not (card / "venv").exists()
    return done.stderr


@pytest.mark.heavy
def test_wheels_that_the_fleet_signed_are_installed(card: Path) -> None:
    done = install(card)
    assert done.returncode == 0, done.stderr
    assert version(card) == "0.1.0"
    assert (card / "venv/.installed").exists()


def test_a_wheel_that_was_replaced_is_refused(card: Path) -> None:
    add_installable_wheel(card / "wheels", "helper-1.5-py3-none-any.whl", code="print('owned')")
    assert "a wheel is damaged or was replaced" in refused(card)


def test_a_replaced_wheel_with_a_list_to_match_is_refused(card: Path, tmp_path: Path) -> None:
    stranger = Ed25519PrivateKey.generate()
    house = tmp_path / "house"
    (house / OURS).unlink()
    add_installable_wheel(house, OURS, "helper>=1", code="VERSION = 'owned'")
    for name, content in device_wheels(house, (PYTHON,), lambda made: stranger.sign(made.content)).items():
        (card / "wheels" / name).write_bytes(content)
    assert "not signed with the fleet's key" in refused(card)


@pytest.mark.parametrize("damage", ["missing", "empty", "altered list"])
def test_a_list_without_a_signature_that_fits_is_refused(card: Path, damage: str) -> None:
    made = card / "wheels" / f"SHA256SUMS-{PYTHON}"
    signature = made.with_name(f"{made.name}.sig")
    if damage == "missing":
        signature.unlink()
    elif damage == "empty":
        signature.write_bytes(b"")
    else:
        made.write_bytes(made.read_bytes() + made.read_bytes().splitlines(keepends=True)[-1])
    assert "not signed with the fleet's key" in refused(card)


def test_something_else_that_the_key_has_signed_is_no_list(card: Path) -> None:
    made = card / "wheels" / f"SHA256SUMS-{PYTHON}"
    made.write_bytes(made.read_bytes().replace(b"wheels 1", b"things 1"))
    made.with_name(f"{made.name}.sig").write_bytes(KEY.sign(made.read_bytes()))
    assert "is not a list of wheels" in refused(card)


def test_a_missing_wheel_and_another_python_are_named(card: Path) -> None:
    (card / "wheels" / OURS).unlink()
    assert "a wheel is damaged" in refused(card)
    (card / "wheels" / f"SHA256SUMS-{PYTHON}").unlink()
    assert f"no wheels for this system's Python {PYTHON}" in refused(card)


def test_a_device_file_without_a_key_is_named(card: Path) -> None:
    (card / "device.json").write_bytes(msgspec.json.encode({"device": "pi-07"}))
    assert "device.json cannot be read" in refused(card)


@pytest.mark.heavy
def test_what_lies_beside_the_signed_wheels_is_neither_run_nor_installed(card: Path) -> None:
    mark = card / "owned"
    code = f"open({str(mark)!r}, 'w')\n"
    pip = add_installable_wheel(card / "wheels", "pip-999.0-py3-none-any.whl", code=code)
    assert pip.exists()
    add_installable_wheel(card / "wheels", "sparsyedge-9.9-py3-none-any.whl", code="VERSION = '9.9'")
    for folder in (card, card / "wheels"):
        for name in ("pip", "venv", "json"):
            (folder / f"{name}.py").write_text(code)
    done = install(card)
    assert done.returncode == 0, done.stderr
    assert version(card) == "0.1.0"
    assert not mark.exists()
