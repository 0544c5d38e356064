"""Private sums: they are exact, they survive losses and lies, and they show nothing but themselves."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from fixtures.private_sum import Cohort, signed
from scipy.stats import chisquare

from sparsyedge.coordinator.privacy.desk import SumDesk
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.privacy import keys
from sparsyedge.edge.privacy.fixed_point import unpack
from sparsyedge.edge.privacy.mask_stream import take_mask
from sparsyedge.edge.privacy.member import Member
from sparsyedge.edge.privacy.messages import Opening

NAMES = [f"pi-{number}" for number in range(8)]


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    """Eight devices that have masked their updates; five of seven neighbours open a secret."""
    return Cohort(8).masked()


def test_every_selection_of_devices_that_is_large_enough_sums_exactly(cohort: Cohort) -> None:
    for count in range(6, 9):
        for names in itertools.combinations(NAMES, count):
            result = cohort.opened(cohort.desk_with(*names)).finish()
            assert np.array_equal(result.mean, cohort.sum_of(list(names)))
            assert (result.devices, result.liars) == (names, ())


def test_no_selection_below_the_threshold_is_opened(cohort: Cohort) -> None:
    for count in range(6):
        for names in itertools.combinations(NAMES, count):
            with pytest.raises(SecurityError, match="5 are needed; the round is to be repeated"):
                cohort.desk_with(*names).begin_opening()


def test_the_order_of_arrival_changes_no_bit(cohort: Cohort) -> None:
    backwards = cohort.opened(cohort.desk_with(*reversed(NAMES))).finish()
    assert np.array_equal(backwards.mean, cohort.opened(cohort.desk_with(*NAMES)).finish().mean)


def test_an_update_that_comes_twice_counts_once(cohort: Cohort) -> None:
    desk = cohort.desk_with(*NAMES, *NAMES)
    assert np.array_equal(cohort.opened(desk).finish().mean, cohort.sum_of(NAMES))


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_devices_lost_before_they_shared_are_left_out(gone: int) -> None:
    cohort = Cohort(8)
    if gone > 2:
        with pytest.raises(SecurityError, match="5 of 8 devices have shared their secrets, too few"):
            cohort.shared(without=tuple(NAMES[:gone]))
        return
    result = cohort.shared(without=tuple(NAMES[:gone])).masked().opened(cohort.desk).finish()
    assert np.array_equal(result.mean, cohort.sum_of(NAMES[gone:]))


@pytest.mark.parametrize("silent", [1, 2, 3])
def test_openings_that_never_come_are_not_missed_while_enough_are_in(cohort: Cohort, silent: int) -> None:
    desk = cohort.desk_with(*NAMES)
    for name, request in list(desk.begin_opening().items())[silent:]:
        desk.take_opening(Member(cohort.members[name].state).open(request))
    if silent > 2:
        with pytest.raises(SecurityError, match=r"mask of pi-3 stays closed: 4 of 7 neighbours"):
            desk.finish()
    else:
        assert np.array_equal(desk.finish().mean, cohort.sum_of(NAMES))


def lie(desk: SumDesk, opening: Opening) -> None:
    """Send a share of one secret that is wrong."""
    kind = "keys" if opening.keys else "seeds"
    shares = dict(getattr(opening, kind))
    shares[min(shares)] = bytes(32) + b"\1"
    desk.take_opening(msgspec.structs.replace(opening, **{kind: shares}))


@pytest.mark.parametrize("names", [NAMES, NAMES[1:]], ids=["a mask", "the key of a lost device"])
def test_a_device_that_lies_in_the_opening_is_named_and_survived(cohort: Cohort, names: list[str]) -> None:
    desk = cohort.desk_with(*names)
    for name, request in desk.begin_opening().items():
        opening = Member(cohort.members[name].state).open(request)
        if name == "pi-5":
            lie(desk, opening)
        else:
            desk.take_opening(opening)
    result = desk.finish()
    assert result.liars == ("pi-5",)
    assert np.array_equal(result.mean, cohort.sum_of(names))


def test_openings_that_were_not_asked_for_are_refused(cohort: Cohort) -> None:
    desk = cohort.desk_with(*NAMES[1:])
    request = desk.begin_opening()["pi-1"]
    opening = Member(cohort.members["pi-1"].state).open(request)
    with pytest.raises(SecurityError, match="pi-1 opened other secrets"):
        desk.take_opening(msgspec.structs.replace(opening, keys={}))
    with pytest.raises(SecurityError, match="pi-0 is not in the sum"):
        desk.take_opening(msgspec.structs.replace(opening, device="pi-0"))


def test_forged_second_and_surplus_keys_are_refused() -> None:
    cohort = Cohort(8)
    desk = SumDesk(cohort.task, cohort.desk.verify, seed=b"seed")
    for advert in cohort.adverts.values():
        desk.take_advert(advert)
    forged = msgspec.structs.replace(cohort.adverts["pi-0"], mask_key=bytes(32))
    with pytest.raises(SecurityError, match="keys of pi-0 are not signed"):
        desk.take_advert(forged)
    other = Member.begin(cohort.task, "pi-0").advert(signed)
    with pytest.raises(SecurityError, match="pi-0 has sent two sets of keys"):
        desk.take_advert(other)
    with pytest.raises(SecurityError, match="pi-8 is one more"):
        desk.take_advert(Member.begin(cohort.task, "pi-8").advert(signed))


def test_keys_of_an_earlier_sum_are_refused() -> None:
    earlier, later = Cohort(8), Cohort(8)
    desk = SumDesk(later.task, later.desk.verify, seed=b"seed")
    with pytest.raises(SecurityError, match="keys of pi-0 are not signed"):
        desk.take_advert(earlier.adverts["pi-0"])


def test_an_update_of_another_size_or_of_a_stranger_is_refused(cohort: Cohort) -> None:
    desk = cohort.desk_with()
    with pytest.raises(SecurityError, match="has 3 bytes"):
        desk.take_update("pi-0", b"abc")
    with pytest.raises(SecurityError, match="pi-9 has shared no secrets"):
        desk.take_update("pi-9", cohort.payloads["pi-0"])


def test_shares_for_other_devices_than_the_neighbours_are_refused() -> None:
    cohort = Cohort(8)
    message = cohort.members["pi-0"].share(cohort.neighbourhoods["pi-0"], lambda advert, content: True)
    shares = dict(list(message.shares.items())[1:])
    with pytest.raises(SecurityError, match="not one for each of its 7 neighbours"):
        cohort.desk.take_shares(msgspec.structs.replace(message, shares=shares))


def test_a_masked_update_is_uniform_noise_to_the_coordinator() -> None:
    cohort = Cohort(8, length=60_000).masked()
    scale = cohort.task.scale
    for name, payload in cohort.payloads.items():
        low = np.bincount(np.frombuffer(payload, np.uint8), minlength=256)
        assert chisquare(low).pvalue > 1e-6, name
        # The same for what it hides: all of the device's update is between 0 and 2**16, far from uniform.
        assert chisquare(np.bincount(cohort.clear[name] >> 16 & 255, minlength=256)).pvalue < 1e-6
        assert unpack(payload, scale, 60_001).max() > 2**23


def test_a_coordinator_that_opens_a_lost_devices_key_still_cannot_see_its_update() -> None:
    # Its update came too late for the sum: its shared masks come off with its key, its own mask stays on.
    cohort = Cohort(8, length=60_000).masked()
    state = cohort.members["pi-0"].state
    words = unpack(cohort.payloads["pi-0"], cohort.task.scale, 60_001)
    for other, advert in state.neighbours.items():
        secret = keys.mask_secret(cohort.task, state.mask_private, advert.mask_key)
        mask = np.zeros_like(words)
        take_mask(mask, secret)
        words += mask if other > "pi-0" else -mask
    assert chisquare(np.bincount(words & 255, minlength=256)).pvalue > 1e-6
    take_mask(words, keys.own_mask_key(cohort.task, state.seed))
    assert np.array_equal(words & 0xFFFFFF, cohort.clear["pi-0"])


def test_a_large_cohort_sums_over_a_ring_of_neighbours() -> None:
    cohort = Cohort(30, degree=8, threshold=5, length=50).masked()
    names = [name for name in cohort.members if name not in ("pi-3", "pi-17")]
    result = cohort.opened(cohort.desk_with(*names)).finish()
    assert np.array_equal(result.mean, cohort.sum_of(names))
