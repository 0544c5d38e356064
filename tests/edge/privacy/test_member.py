"""What a device refuses in a private sum, and that it can be stored between any two steps."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from fixtures.private_sum import Cohort, signed, trusting

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.privacy.member import Member, MemberState
from sparsyedge.edge.privacy.messages import Advert, Delivery, Neighbourhood, OpeningRequest, SealedShares, SumTask


def words_of(cohort: Cohort) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.zeros(cohort.task.length + 1, np.uint32)


def test_neighbours_must_be_members_that_signed_their_keys() -> None:
    cohort = Cohort(8)
    adverts = cohort.neighbourhoods["pi-0"].adverts
    forged = msgspec.structs.replace(adverts[0], mask_key=bytes(31) + b"\1")
    with pytest.raises(SecurityError, match=f"keys of {adverts[0].device} are not signed"):
        cohort.members["pi-0"].share(Neighbourhood(adverts=(forged, *adverts[1:])), trusting)


def test_keys_of_another_sum_are_no_keys_of_this_one() -> None:
    first, second = Cohort(8), Cohort(8)
    with pytest.raises(SecurityError, match="not signed"):
        second.members["pi-0"].share(first.neighbourhoods["pi-0"], trusting)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda adverts: adverts[:1] * 7, "not different devices"),
        (lambda adverts: adverts[:4], "only 4 devices are neighbours around pi-0, 5 are needed"),
    ],
)
def test_neighbours_must_be_enough_and_different(
    change: Callable[[tuple[Advert, ...]], tuple[Advert, ...]], sentence: str
) -> None:
    cohort = Cohort(8)
    adverts = change(cohort.neighbourhoods["pi-0"].adverts)
    with pytest.raises(SecurityError, match=sentence):
        cohort.members["pi-0"].share(Neighbourhood(adverts=adverts), trusting)


def test_shares_that_were_altered_or_swapped_are_not_held() -> None:
    cohort = Cohort(8).shared()
    shares = cohort.deliveries["pi-0"].shares
    altered = {**shares, "pi-1": bytes(len(shares["pi-1"]))}
    swapped = {**shares, "pi-1": shares["pi-2"], "pi-2": shares["pi-1"]}
    for wrong in (altered, swapped):
        with pytest.raises(SecurityError, match="shares of pi-1 for pi-0 were altered"):
            Member(cohort.members["pi-0"].state).mask(Delivery(shares=wrong), words_of(cohort))


def test_an_update_goes_out_only_if_enough_neighbours_can_open_its_mask() -> None:
    cohort = Cohort(8).shared()
    few = dict(list(cohort.deliveries["pi-0"].shares.items())[:4])
    with pytest.raises(SecurityError, match="only 4 devices have sent shares around pi-0, 5 are needed"):
        cohort.members["pi-0"].mask(Delivery(shares=few), words_of(cohort))


@pytest.mark.parametrize(
    ("present", "lost", "sentence"),
    [
        (range(1, 8), [1], "pi-1 cannot both be in the sum and have left"),
        (range(1, 5), range(5, 8), "only 4 devices are in the sum around pi-0"),
        (range(8), [], "no shares of pi-0 are held"),
        (range(1, 7), [9], "no shares of pi-9 are held"),
    ],
)
def test_a_device_never_opens_what_would_show_an_update(present: range, lost: list[int], sentence: str) -> None:
    cohort = Cohort(8).masked()
    request = OpeningRequest(
        present=tuple(f"pi-{number}" for number in present), lost=tuple(f"pi-{number}" for number in lost)
    )
    with pytest.raises(SecurityError, match=sentence):
        cohort.members["pi-0"].open(request)


def test_a_device_opens_once() -> None:
    cohort = Cohort(8).masked()
    member, request = cohort.members["pi-0"], cohort.desk.begin_opening()["pi-0"]
    member.open(request)
    with pytest.raises(SecurityError, match="pi-0 has opened already"):
        member.open(OpeningRequest(present=request.present[1:], lost=request.present[:1]))


def test_a_device_masks_one_update_with_one_key() -> None:
    cohort = Cohort(8).masked()
    with pytest.raises(SecurityError, match="pi-0 has masked already"):
        cohort.members["pi-0"].mask(cohort.deliveries["pi-0"], words_of(cohort))


def test_a_device_that_restarts_goes_on_with_what_it_stored() -> None:
    cohort = Cohort(8).shared()
    stored = msgspec.msgpack.encode(cohort.members["pi-0"].state)
    payload = cohort.members["pi-0"].mask(cohort.deliveries["pi-0"], words_of(cohort))
    restarted = Member(msgspec.msgpack.decode(stored, type=MemberState))
    assert restarted.mask(cohort.deliveries["pi-0"], words_of(cohort)) == payload


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Advert, '{"device":"pi-0","mask_key":"AAAA","channel_key":"AAAA","commitment":"AAAA"}'),
        (SealedShares, '{"device":"../pi","shares":{}}'),
        (SealedShares, '{"device":"pi-0","shares":{"pi-1":"AAAA"}}'),
        (OpeningRequest, '{"present":["pi-1"],"lost":[],"both":["pi-1"]}'),
        (OpeningRequest, '{"present":[' + ",".join(f'"pi-{n}"' for n in range(1025)) + '],"lost":[]}'),
    ],
)
def test_messages_of_another_shape_are_not_read(kind: type[msgspec.Struct], text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=kind)


@pytest.mark.parametrize(("degree", "threshold"), [(5, 4), (8, 3), (8, 8), (6, 3)])
def test_a_task_whose_shares_could_open_both_secrets_is_refused(degree: int, threshold: int) -> None:
    fields = msgspec.to_builtins(Cohort(8).task) | {"degree": degree, "threshold": threshold}
    with pytest.raises(msgspec.ValidationError, match="allowed"):
        msgspec.convert(fields, SumTask)


def test_an_advert_carries_the_signature_of_its_own_keys() -> None:
    cohort = Cohort(8)
    advert = cohort.members["pi-0"].advert(signed)
    assert advert == cohort.adverts["pi-0"]
