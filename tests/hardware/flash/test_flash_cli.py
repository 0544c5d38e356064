"""The command line, with a real authority behind it."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from fixtures.stock_images import ARMHF, TRIXIE, stock_image
from fixtures.wheelhouses import a_wheelhouse, add_wheel

from sparsyedge.edge.cli import main
from sparsyedge.edge.enrolment import DEVICE_FILE_NAME, read_device_file, write_device_file
from sparsyedge.hardware.flash.verify import inspect_card


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a fleet's authority and a stock image."""
    monkeypatch.chdir(tmp_path)
    assert main(["coordinator", "init", "fleet", "--host", "coordinator.local,192.168.7.2"]) == 0
    stock_image(tmp_path / "os.img", TRIXIE)
    return tmp_path


def flash(*arguments: str) -> int:
    return main(["flash", *arguments])


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence of a command that must fail."""
    capsys.readouterr()
    assert flash(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("sparsyedge: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


PI = ("pi", "--image", "os.img", "--out", "card.img", "--device-id", "pi-07")


def test_one_command_makes_a_card_that_verifies(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(lab / "mine.npz", x=np.zeros(3))
    assert flash(*PI, "--data", "mine.npz", "--coordinator", "192.168.7.2", "--share", "3/8") == 0
    capsys.readouterr()
    assert flash("verify", "card.img") == 0
    printed = capsys.readouterr().out
    assert "device       pi-07 of fleet default" in printed
    assert "coordinator  192.168.7.2, members 8883, new devices 8884" in printed
    assert "token        there, good for one enrolment" in printed
    assert "trains on    /var/lib/sparsyedge/data/mine.npz (mine.npz on the card)" in printed
    device = inspect_card(lab / "card.img").device
    assert device.data is not None
    assert device.data.partition is not None
    assert (device.data.partition.index, device.data.partition.devices) == (3, 8)


def test_a_series_has_ids_tokens_and_shares_of_its_own(lab: Path) -> None:
    assert flash(*PI, "--count", "3", "--data", "digits", "--share", "0/3") == 0
    devices = [inspect_card(lab / f"card-pi-0{number}.img").device for number in (7, 8, 9)]
    assert [device.device for device in devices] == ["pi-07", "pi-08", "pi-09"]
    assert len({device.token for device in devices}) == 3
    assert [device.data.partition.index for device in devices if device.data and device.data.partition] == [0, 1, 2]


def test_an_identity_made_elsewhere_is_taken_from_its_file(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coordinator", "token", "pi-07", "--out", DEVICE_FILE_NAME]) == 0
    assert flash(*PI, "--device-file", DEVICE_FILE_NAME) == 0
    assert inspect_card(lab / "card.img").device == read_device_file(lab / DEVICE_FILE_NAME)
    other = ("pi", "--image", "os.img", "--out", "other.img", "--device-id", "pi-08", "--device-file", DEVICE_FILE_NAME)
    assert "the device file is for pi-07 and the card for pi-08" in failed(capsys, *other)
    assert not (lab / "other.img").exists()


def test_an_expired_token_is_refused_before_a_card_is_made(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coordinator", "token", "pi-07", "--out", DEVICE_FILE_NAME]) == 0
    made = read_device_file(lab / DEVICE_FILE_NAME)
    write_device_file(lab / DEVICE_FILE_NAME, msgspec.structs.replace(made, token_until=1_000_000_000))
    sentence = failed(capsys, *PI, "--device-file", DEVICE_FILE_NAME)
    assert "the token in the file of pi-07 expired at 2001-09-09 01:46 UTC; make another with" in sentence
    assert not (lab / "card.img").exists()


def test_bad_inputs_are_one_sentence_and_leave_nothing(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stock_image(lab / "armhf.img", ARMHF)
    add_wheel(lab / "house", "pip-25.1-py3-none-any.whl")
    before = sorted(path.name for path in lab.iterdir())
    cases = {
        "is a 32-bit image": [*PI[:2], "armhf.img", *PI[3:]],
        "no image no.img": [*PI[:2], "no.img", *PI[3:]],
        "allowed are 1 to 63 letters": [*PI[:-1], "pi/07"],
        "has no wheel of sparsyedge": [*PI, "--wheelhouse", "house"],
        "no wheelhouse nothing": [*PI, "--wheelhouse", "nothing"],
        "allowed are an .npz file": [*PI, "--data", "nothing"],
        "has 0 .npz files": [*PI, "--data", "house/"],
        "needs --wifi-password-file": [*PI, "--wifi-ssid", "net"],
        "cannot read the Wi-Fi password": [*PI, "--wifi-ssid", "net", "--wifi-password-file", "no.txt"],
        "nowhere": [*PI, "--fleet-dir", "nowhere"],
        "allowed is a disk in /dev": [*PI, "--write", "card"],
        "write them one by one": [*PI, "--count", "2", "--write", "/dev/sdb"],
        "count is 0": [*PI, "--count", "0"],
        "no sparsyedge wheel for aarch64": ["wheelhouse", "--out", "new"],
        "has no sparsyedge-device.json": ["verify", "os.img"],
        "cannot read image": ["verify", "no.img"],
    }
    for sentence, arguments in cases.items():
        assert sentence in failed(capsys, *arguments), sentence
    assert sorted(path.name for path in lab.iterdir()) == before


def test_a_wifi_password_comes_from_a_file(lab: Path) -> None:
    (lab / "password").write_text("correct horse\n")
    assert flash(*PI, "--wifi-ssid", "lab", "--wifi-password-file", "password", "--wifi-country", "DE") == 0
    assert inspect_card(lab / "card.img").has_wifi


def test_a_phones_bundle_is_one_script_that_unpacks_itself(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    house = a_wheelhouse(lab / "house")
    for name in ("numpy-2.0.0", "onnxruntime-1.23.2"):
        add_wheel(house, f"{name}-cp311-cp311-manylinux2014_aarch64.whl")
    assert flash("android", "--device-id", "phone-03", "--wheelhouse", "house") == 0
    bundle = lab / "sparsyedge-phone-03.sh"
    assert f"sh {bundle.name}" in capsys.readouterr().out
    assert bundle.stat().st_mode & 0o777 == 0o600
    content = bundle.read_bytes()
    offset = int(content.split(b"PAYLOAD_OFFSET=")[1][:16])
    with tarfile.open(fileobj=io.BytesIO(content[offset - 1 :])) as archive:
        names = archive.getnames()
        device = archive.extractfile(DEVICE_FILE_NAME)
        assert device is not None
        assert b"phone-03" in device.read()
    assert {"setup.sh", "run.sh", "wheels/pip-25.1-py3-none-any.whl"} <= set(names)
    assert any("cp311" in name for name in names)
    assert any("cp313" in name for name in names)
    unpacked = lab / "unpacked"
    unpacked.mkdir()
    subprocess.run(f"tail -c +{offset} {bundle.name} | tar -x -C unpacked", shell=True, check=True, cwd=lab)
    assert sorted(path.name for path in unpacked.iterdir()) == [
        "run.sh",
        "setup.sh",
        DEVICE_FILE_NAME,
        "wheels",
    ]


@pytest.mark.parametrize("script", ["card/firstboot.sh", "card/install.sh", "phone/setup.sh", "phone/run.sh"])
def test_the_scripts_are_valid_shell(script: str) -> None:
    from sparsyedge.hardware import flash as package

    path = Path(package.__file__).parent / script
    subprocess.run(["sh", "-n", str(path)], check=True)
