"""The key of a run: certified once, renewed if devices would refuse it, and made on another machine if necessary."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest
from fixtures.fake_coordinator import round_task

from sparsyedge.coordinator.authority.artifact_signing import sign
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.commands.coordinator_command import main
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.broker_access import check_epochs
from sparsyedge.coordinator.fleet.run_key import CERTIFICATE_NAME, KEY_NAME, RunKey, check_run_key, open_run_key
from sparsyedge.edge.errors import ArtifactError, SecurityError, SparsyedgeError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.messages import encode
from sparsyedge.edge.security.pinned_keys import PinnedKeys
from sparsyedge.edge.security.trust import Trust


@pytest.fixture
def config(authority: Authority, tmp_path: Path) -> RunConfig:
    return RunConfig(
        name="demo",
        artifacts=str(tmp_path / "artifacts"),
        run_dir=str(tmp_path / "run"),
        dataset="none",
        fleet="lab",
        rounds=1,
        cohort_size=1,
        authority=str(authority.folder),
    )


def open_key(config: RunConfig, *, is_new: bool = False) -> RunKey:
    key = open_run_key(config, is_new=is_new)
    assert key is not None
    return key


def other_run(config: RunConfig, tmp_path: Path) -> RunConfig:
    return msgspec.structs.replace(config, name="other", run_dir=str(tmp_path / "other"))


def test_devices_believe_the_tasks_of_a_run_that_was_certified(
    authority: Authority, config: RunConfig, tmp_path: Path
) -> None:
    trust = Trust(PinnedKeys(authority.signing_key), fleet="lab", path=tmp_path / "trust.json")
    assert trust.believes(encode(open_key(config, is_new=True).seal(round_task())))
    assert stat.S_IMODE((config.run_path / KEY_NAME).stat().st_mode) == 0o600


def test_devices_believe_an_evaluation_round_after_the_last_round_and_no_replay_of_it_later(
    authority: Authority, config: RunConfig, tmp_path: Path
) -> None:
    trust = Trust(PinnedKeys(authority.signing_key), fleet="lab", path=tmp_path / "trust.json")
    key = open_key(config, is_new=True)
    evaluation = encode(key.seal(round_task(round=3, evaluation=1, needs=("device-evaluation",))))
    assert trust.believes(encode(key.seal(round_task(round=3, state="finished"))))
    assert trust.believes(evaluation)
    assert trust.believes(encode(key.seal(round_task(round=4))))
    assert not trust.believes(evaluation)


def test_a_run_that_goes_on_keeps_its_key_and_its_certificate(config: RunConfig) -> None:
    began = open_key(config, is_new=True)
    assert open_key(config).certificate == began.certificate


def test_a_run_that_goes_on_after_another_is_certified_anew_with_the_same_key(
    config: RunConfig, tmp_path: Path
) -> None:
    began = open_key(config, is_new=True).certificate
    between = open_key(other_run(config, tmp_path), is_new=True).certificate
    resumed = open_key(config).certificate
    assert began.serial < between.serial < resumed.serial
    assert resumed.key == began.key


def test_a_run_that_starts_over_in_its_directory_is_certified_anew(config: RunConfig) -> None:
    # Devices have seen later rounds under the first certificate.
    began = open_key(config, is_new=True).certificate
    assert open_key(config, is_new=True).certificate.serial > began.serial


@pytest.mark.parametrize("damage", ["lost", "unreadable", "of another run"])
def test_a_certificate_that_devices_would_refuse_is_replaced(config: RunConfig, damage: str) -> None:
    began = open_key(config, is_new=True).certificate
    path = config.run_path / CERTIFICATE_NAME
    match damage:
        case "lost":
            path.unlink()
        case "unreadable":
            path.write_bytes(b"\xff")
        case _:
            path.write_bytes(encode(msgspec.structs.replace(began, run="other")))
    assert open_key(config).certificate.serial > began.serial


def test_a_ledger_from_an_old_backup_gives_out_no_serial_that_devices_have_seen(
    authority: Authority, config: RunConfig, tmp_path: Path
) -> None:
    open_key(config, is_new=True)
    before = open_key(other_run(config, tmp_path), is_new=True).certificate.serial
    (authority.folder / "authority.sqlite").unlink()
    with authority.ledger() as ledger:
        assert ledger.next_run_serial("demo", "ab" * 32) >= before - 1


def test_a_run_key_may_be_certified_where_the_signing_key_is(
    authority: Authority, config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(
        f'name = "demo"\nartifacts = "a"\nrun_dir = "{config.run_dir}"\ndataset = "digits"\nfleet = "lab"\n'
        f'rounds = 1\ncohort_size = 1\nauthority = "{authority.folder}"\n'
    )
    assert main(["sign", "--run", str(tmp_path / "run.toml"), "--dir", str(authority.folder)]) == 0
    assert "certified the key of run demo" in capsys.readouterr().out
    # From here on, act as a coordinator's machine with neither the signing key nor the other machine's ledger.
    (authority.folder / "signing.key").unlink()
    (authority.folder / "authority.sqlite").unlink()
    check_run_key(config, is_new=True)
    key = open_key(config, is_new=True)
    check_run_key(config, is_new=False)
    assert open_key(config).certificate == key.certificate
    with pytest.raises(SecurityError, match=r"sign --run RUN\.toml` on the machine that has the signing key"):
        check_run_key(config, is_new=True)


def test_without_a_signing_key_a_run_says_what_to_do_before_anything_is_written(
    authority: Authority, config: RunConfig
) -> None:
    (authority.folder / "signing.key").unlink()
    with pytest.raises(SecurityError, match=r"signing\.key cannot be read \(No such file or directory\)"):
        check_run_key(config, is_new=True)
    assert not config.run_path.exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "nothing says what to sign"),
        (["--max-epochs", "5"], "nothing says what to sign"),
        (["artifacts", "--max-epochs", "0"], "allowed are 1 to 10000"),
        (["--run", "absent.toml"], "no config file absent.toml"),
    ],
)
def test_sign_says_what_it_needs(authority: Authority, arguments: list[str], sentence: str) -> None:
    with pytest.raises(SparsyedgeError, match=sentence):
        main(["sign", *arguments, "--dir", str(authority.folder)])


def test_a_run_does_not_start_with_more_epochs_than_were_signed(
    authority: Authority, artifacts: Artifacts, config: RunConfig
) -> None:
    signed = sign(authority, artifacts.directory)
    config = msgspec.structs.replace(config, artifacts=str(artifacts.directory), epochs=1001)
    with pytest.raises(ArtifactError, match=r"`epochs` has value 1001, .* --max-epochs 1001"):
        check_epochs(config, signed.manifest.max_epochs)
    again = sign(authority, artifacts.directory, max_epochs=2000)
    check_epochs(config, again.manifest.max_epochs)
    assert again.id == signed.id
    # Signing again for another reason leaves it as it is.
    assert sign(authority, artifacts.directory).manifest.max_epochs == 2000
    check_epochs(msgspec.structs.replace(config, authority=None, epochs=5000), signed.manifest.max_epochs)


def test_a_fleet_without_an_authority_has_no_run_key(config: RunConfig) -> None:
    plain = msgspec.structs.replace(config, authority=None)
    check_run_key(plain, is_new=True)
    assert open_run_key(plain, is_new=True) is None
    assert not config.run_path.exists()
