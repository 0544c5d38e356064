"""Replaces a fleet's authority by a new one while its devices stay where they are.

    following   next/ holds the new authority; brokers take members of both; devices are told, and follow one by one
    returning   the operator has changed their mind: devices go back to the present authority in the same way
    switching   the new authority takes the place of the present one, file by file, from next/
    closed      one authority is left, and devices are told to forget the other

`rotation.json` says which, and is replaced in one piece; that is the moment a stage begins. `settle` then makes the
rest of the folder agree with it, and does so again after a crash at any point. Until `switching`, the present key signs
everything, which every device trusts; after it the new one does, which every device trusts that was waited for.
"""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sparsyedge.coordinator.authority import certificates
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.followers import Headcount, count_heads, holds_next
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.security.succession import Succession, TrustedAuthority, seal
from sparsyedge.edge.storage import sync_directory, write_atomically

__all__ = ["Rotation", "abort", "begin", "finish", "headcount", "read_rotation", "rotating", "settle"]

STATE_NAME = "rotation.json"
LOCK_NAME = "rotation.lock"
UNFINISHED_NAME = "next.part"
LAST_FILES = ("ca.key", "ca.pem")
"""Replaced after all others; meanwhile nothing is certified."""

Stage = Literal["following", "returning", "switching", "closed"]


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """How far a rotation is."""

    number: int
    """Of the statement that devices are told now."""
    stage: Stage
    began_unix_s: float
    sealed: str
    """The statement as it travels."""
    left_behind: tuple[str, ...] = ()
    """Devices that were not waited for, which need a new token."""

    @property
    def is_open(self) -> bool:
        """Whether devices are expected to follow."""
        return self.stage in ("following", "returning")


def read_rotation(folder: Path) -> Rotation | None:
    """How far the rotation in this authority's folder is; None if there never was one."""
    path = folder / STATE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Rotation)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SecurityError(f"cannot read {path}: {error}; restore it from a backup") from error


@contextmanager
def rotating(authority: Authority) -> Iterator[Rotation | None]:
    """Hold off other processes that would begin, change or copy a rotation; yields how far it is."""
    with (authority.folder / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield read_rotation(authority.folder)


def begin(authority: Authority) -> Rotation:
    """Make a new authority and tell the devices of it; goes on with a rotation that is under way."""
    with rotating(authority) as state:
        if state is not None and state.stage != "closed":
            return _settle(authority, state)
        # What a crash left of an earlier one: nobody was told of it.
        _remove_next(authority)
        key = _signing_key(authority.folder)
        number = _next_number(state)
        _make_next(authority, number)
        said = _authorities(authority, next_first=True)
        with authority.ledger() as ledger:
            ledger.forget_seen()
        return _enter(
            authority,
            Rotation(
                number=number, stage="following", began_unix_s=time.time(), sealed=_sealed(authority, number, said, key)
            ),
        )


def abort(authority: Authority) -> Rotation:
    """Have the devices go back to the present authority; over at once if none has a certificate by the next."""
    with rotating(authority) as state:
        if state is None or state.stage == "closed":
            raise SecurityError(f"no rotation is under way in {authority.folder}; there is nothing to abort")
        if state.stage == "switching":
            raise SecurityError("it is too late: the new authority has taken over; run `rotate --finish` to the end")
        if state.stage == "returning":
            return _settle(authority, state)
        with authority.ledger() as ledger:
            nobody = not holds_next(authority, ledger)
        key, number = _signing_key(authority.folder), _next_number(state)
        both = _authorities(authority, next_first=False)
        said = both[:1] if nobody else both
        stage: Stage = "closed" if nobody else "returning"
        sealed = _sealed(authority, number, said, key)
        return _enter(authority, msgspec.structs.replace(state, number=number, stage=stage, sealed=sealed))


def finish(authority: Authority, leave_behind: Collection[str] = ()) -> Rotation:
    """Leave one authority, and tell the devices to forget the other; raises SecurityError while some are missing."""
    with rotating(authority) as state:
        if state is None or state.stage == "closed":
            raise SecurityError(
                f"no rotation is under way in {authority.folder}; begin one with `sparsyedge coordinator rotate`"
            )
        if state.stage == "switching":
            return _settle(authority, state)
        heads = headcount(authority, state)
        missing = {each.device for each in heads.missing}
        if strangers := set(leave_behind) - missing:
            raise SecurityError(
                f"`--leave-behind` names {', '.join(sorted(strangers))}, which nobody waits for; {heads.sentence()}"
            )
        if left := sorted(missing - set(leave_behind)):
            raise SecurityError(
                f"{heads.sentence()}; wait for them, or name them with `--leave-behind {' '.join(left)}`: they will "
                f"then need a new token each"
            )
        number, returns = _next_number(state), state.stage == "returning"
        key = _signing_key(authority.folder if returns else authority.next)
        said = _authorities(authority, next_first=not returns)[:1]
        return _enter(
            authority,
            msgspec.structs.replace(
                state,
                number=number,
                stage="closed" if returns else "switching",
                sealed=_sealed(authority, number, said, key),
                left_behind=tuple(sorted(leave_behind)),
            ),
        )


def headcount(authority: Authority, state: Rotation) -> Headcount:
    """Who has followed the present statement, and who has not."""
    with authority.ledger() as ledger:
        return count_heads(authority, ledger, number=state.number, returns=state.stage == "returning")


def settle(authority: Authority) -> Rotation | None:
    """Finish what a crash interrupted; does nothing, and costs little, if there was none."""
    with rotating(authority) as state:
        return None if state is None else _settle(authority, state)


def _enter(authority: Authority, state: Rotation) -> Rotation:
    """Begin a stage; from here on, `settle` goes on with it after a crash."""
    _write(authority.folder, state)
    return _settle(authority, state)


def _write(folder: Path, state: Rotation) -> None:
    write_atomically(folder / STATE_NAME, msgspec.json.format(msgspec.json.encode(state), indent=2), private=True)


def _settle(authority: Authority, state: Rotation) -> Rotation:
    """Make the folder and the broker agree with the stage; every step may be repeated."""
    if state.stage == "switching":
        _switch(authority)
        state = msgspec.structs.replace(state, stage="closed")
        _write(authority.folder, state)
    if state.is_open:
        # The lists first: a broker that starts in between must have one of every authority it takes.
        _write_lists(authority, state)
        _write_cas(authority, authority.folder / "ca.pem", authority.next / "ca.pem")
    else:
        _write_cas(authority, authority.folder / "ca.pem")
        _remove_next(authority)
        _write_lists(authority, state)
    authority.reload()
    return state


def _remove_next(authority: Authority) -> None:
    for folder in (authority.next, authority.folder / UNFINISHED_NAME):
        shutil.rmtree(folder, ignore_errors=True)


def _switch(authority: Authority) -> None:
    """Put every file of the new authority in the place of the old one's."""
    names = sorted(path.relative_to(authority.next).as_posix() for path in authority.next.rglob("*") if path.is_file())
    for name in (*(name for name in names if name not in LAST_FILES), *LAST_FILES):
        content, target = (authority.next / name).read_bytes(), authority.folder / name
        if not target.exists() or target.read_bytes() != content:
            write_atomically(target, content, private=name.endswith(".key"))


def _write_cas(authority: Authority, *paths: Path) -> None:
    """Write whose certificates brokers take: the first of each of these files."""
    firsts = [certificates.first_pem(path.read_bytes()) for path in paths]
    if (target := authority.folder / "ca.pem").read_bytes() != b"".join(firsts):
        write_atomically(target, b"".join(firsts))
    if authority.cluster is not None:
        authority.cluster.write_clients()


def _write_lists(authority: Authority, state: Rotation) -> None:
    with authority.ledger() as ledger:
        for device in state.left_behind:
            ledger.leave_behind(device, number=state.number)
        authority.write_lists(ledger)


def _make_next(authority: Authority, number: int) -> None:
    """Make next/, whole or not at all."""
    unfinished = authority.folder / UNFINISHED_NAME
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    authority.make_next(unfinished, number=number)
    unfinished.rename(authority.next)
    sync_directory(authority.folder)


def _next_number(state: Rotation | None) -> int:
    """Higher than all before, also than those that a restored backup has forgotten."""
    return max(int(time.time()), 1 if state is None else state.number + 1)


def _authorities(authority: Authority, *, next_first: bool) -> tuple[TrustedAuthority, ...]:
    both = [
        TrustedAuthority(
            ca=certificates.certificate_pem(authority.certificate(by_next=by_next)).decode(),
            signing_key=((authority.next if by_next else authority.folder) / "signing.pub").read_text().strip(),
        )
        for by_next in (next_first, not next_first)
    ]
    return tuple(both)


def _sealed(authority: Authority, number: int, said: tuple[TrustedAuthority, ...], key: Ed25519PrivateKey) -> str:
    return seal(Succession(fleet=authority.settings.fleet, number=number, authorities=said), key).decode()


def _signing_key(folder: Path) -> Ed25519PrivateKey:
    """The private key in a folder; raises SecurityError if it, or the authority's, is on another machine."""
    for name in ("signing.key", "ca.key"):
        if not (folder / name).is_file():
            raise SecurityError(
                f"{folder} has no {name}, which a rotation needs; run it on the machine that has all keys of the fleet"
            )
    key = serialization.load_pem_private_key((folder / "signing.key").read_bytes(), password=None)
    assert isinstance(key, Ed25519PrivateKey)
    return key
