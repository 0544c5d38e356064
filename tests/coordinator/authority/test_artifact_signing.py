"""Artifacts signed by the operator, and how devices treat others."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import msgspec
import pytest
from fixtures.secured import make_authority

from sparsyedge.coordinator.authority.artifact_signing import sign
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.op_libraries import record
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.broker_access import manifest_signature, warn_of_unsigned_libraries
from sparsyedge.edge.cli import main
from sparsyedge.edge.errors import ArtifactError, ConfigError
from sparsyedge.edge.model.artifacts import MANIFEST_NAME, Artifacts, decode_manifest, encode_manifest
from sparsyedge.edge.native import LIBRARY_NAME, library_path
from sparsyedge.edge.security.signature import SIGNATURE_NAME, check_library, check_signature


def signed_manifest(directory: Path) -> tuple[bytes, str]:
    return (directory / MANIFEST_NAME).read_bytes(), (directory / SIGNATURE_NAME).read_text().strip()


def test_a_signature_holds_for_the_signed_manifest_and_key_alone(
    authority: Authority, artifacts: Artifacts, tmp_path: Path
) -> None:
    sign(authority, artifacts.directory, [])
    content, signature = signed_manifest(artifacts.directory)
    check_signature(content, signature, signing_key=authority.signing_key)
    changed = content.replace(b'"seed": 0', b'"seed": 1')
    assert changed != content
    flipped = f"{int(signature[0], 16) ^ 1:x}{signature[1:]}"
    for manifest, proof in ((changed, signature), (content + b" ", signature), (content, flipped), (content, "ab")):
        with pytest.raises(ArtifactError, match="altered or signed by somebody else"):
            check_signature(manifest, proof, signing_key=authority.signing_key)
    with pytest.raises(ArtifactError, match="not signed"):
        check_signature(content, "", signing_key=authority.signing_key)
    with pytest.raises(ArtifactError, match="somebody else"):
        check_signature(content, signature, signing_key=make_authority(tmp_path / "other").signing_key)


def test_an_altered_graph_is_found_through_the_signed_manifest(authority: Authority, artifacts: Artifacts) -> None:
    sign(authority, artifacts.directory, [])
    (artifacts.directory / "training").write_bytes(b"another graph")
    with pytest.raises(ArtifactError, match="altered or cut"):
        Artifacts.load(artifacts.directory)


def test_the_op_library_of_a_wheel_is_listed_by_its_hash(
    authority: Authority, artifacts: Artifacts, tmp_path: Path
) -> None:
    wheels = []
    for platform in (b"x86_64", b"aarch64"):
        wheel = tmp_path / f"sparsyedge-{platform.decode()}.whl"
        with zipfile.ZipFile(wheel, "w") as file:
            file.writestr(f"sparsyedge/edge/native/{LIBRARY_NAME}", platform)
        wheels.append(wheel)
    manifest = sign(authority, artifacts.directory, wheels).manifest
    content, _ = signed_manifest(artifacts.directory)
    assert decode_manifest(content, source="it") == manifest
    listed = {library.sha256 for library in manifest.op_libraries}
    here = hashlib.sha256(library_path().read_bytes()).hexdigest()
    assert listed == {here, *(hashlib.sha256(name).hexdigest() for name in (b"x86_64", b"aarch64"))}
    installed = tmp_path / LIBRARY_NAME
    installed.write_bytes(b"aarch64")
    check_library(manifest, installed)
    installed.write_bytes(b"aarch64 with a back door")
    with pytest.raises(ArtifactError, match="the signed manifest lists"):
        check_library(manifest, installed)


def test_without_a_wheel_the_installed_op_library_is_meant(authority: Authority, artifacts: Artifacts) -> None:
    check_library(sign(authority, artifacts.directory, []).manifest, library_path())


def arm_wheel(folder: Path) -> Path:
    """A wheel whose library has the ELF header of 64-bit ARM."""
    header = bytearray(64)
    header[:4], header[18:20] = b"\x7fELF", (183).to_bytes(2, "little")
    wheel = folder / "sparsyedge-0-py3-none-manylinux_2_34_aarch64.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(f"sparsyedge/edge/native/{LIBRARY_NAME}", bytes(header))
    return wheel


def test_artifacts_are_signed_once_for_all_platforms_that_the_fleet_has(
    authority: Authority, artifacts: Artifacts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["coordinator", "sign", str(artifacts.directory), "--dir", str(authority.folder)]
    assert main(command) == 0
    assert "none of them is for 64-bit ARM, so Raspberry Pis and phones will refuse" in capsys.readouterr().out
    record(authority.folder, [arm_wheel(tmp_path)])
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "linux-aarch64" in said
    assert "linux-x86_64" in said
    assert "note:" not in said
    platforms = [library.platform for library in Artifacts.load(artifacts.directory).manifest.op_libraries]
    assert platforms == ["linux-aarch64", "linux-x86_64"]


def test_a_run_says_which_devices_will_refuse_artifacts_that_were_signed_before_they_were_made(
    authority: Authority, artifacts: Artifacts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sign(authority, artifacts.directory)
    warn_of_unsigned_libraries(run_config(authority, artifacts))
    assert caplog.text == ""
    record(authority.folder, [arm_wheel(tmp_path)])
    warn_of_unsigned_libraries(run_config(authority, artifacts))
    assert "(linux-aarch64) will refuse" in caplog.text


def test_signing_keeps_what_a_later_version_has_put_into_the_manifest(
    authority: Authority, artifacts: Artifacts
) -> None:
    path = artifacts.directory / MANIFEST_NAME
    path.write_bytes(path.read_bytes().replace(b"{\n", b'{\n  "added_later": {"x": [1.5]},\n', 1))
    sign(authority, artifacts.directory, max_epochs=7)
    content, signature = signed_manifest(artifacts.directory)
    check_signature(content, signature, signing_key=authority.signing_key)
    assert msgspec.json.decode(content)["added_later"] == {"x": [1.5]}
    assert decode_manifest(content, source="it").max_epochs == 7


def test_signing_again_leaves_a_run_able_to_go_on(authority: Authority, artifacts: Artifacts, tmp_path: Path) -> None:
    before = artifacts.id
    assert sign(authority, artifacts.directory).id == before
    assert sign(authority, artifacts.directory, [arm_wheel(tmp_path)]).id == before
    other = msgspec.structs.replace(artifacts.manifest, seed=artifacts.manifest.seed + 1)
    assert Artifacts(artifacts.directory, other).id != before


def test_something_that_is_no_wheel_of_ours_is_refused(
    authority: Authority, artifacts: Artifacts, tmp_path: Path
) -> None:
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(other, "w") as file:
        file.writestr("other/__init__.py", "")
    with pytest.raises(ArtifactError, match="not a wheel of sparsyedge"):
        sign(authority, artifacts.directory, [other])
    with pytest.raises(ArtifactError, match="no wheel or op library"):
        sign(authority, artifacts.directory, [tmp_path / "absent.whl"])


def run_config(authority: Authority, artifacts: Artifacts, **changes: object) -> RunConfig:
    config = RunConfig(
        name="r1",
        artifacts=str(artifacts.directory),
        run_dir="run",
        dataset="none",
        fleet="lab",
        rounds=1,
        cohort_size=1,
        authority=str(authority.folder),
    )
    return msgspec.structs.replace(config, **changes)


def test_a_run_of_a_secured_fleet_does_not_start_with_artifacts_that_devices_would_refuse(
    authority: Authority, artifacts: Artifacts
) -> None:
    config = run_config(authority, artifacts)
    with pytest.raises(ArtifactError, match="coordinator sign"):
        manifest_signature(config)
    sign(authority, artifacts.directory, [])
    content, signature = signed_manifest(artifacts.directory)
    assert manifest_signature(config) == signature
    altered = msgspec.structs.replace(decode_manifest(content, source="it"), seed=99)
    (artifacts.directory / MANIFEST_NAME).write_bytes(encode_manifest(altered))
    with pytest.raises(ArtifactError, match="does not fit"):
        manifest_signature(config)
    assert manifest_signature(msgspec.structs.replace(config, authority=None)) == ""


def test_a_run_has_the_fleet_of_its_authority(authority: Authority, artifacts: Artifacts) -> None:
    with pytest.raises(ConfigError, match="that of fleet 'lab'"):
        manifest_signature(run_config(authority, artifacts, fleet="home"))
