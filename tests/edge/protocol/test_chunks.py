import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.protocol.chunks import (
    Assembly,
    blob_of,
    chunk_bytes_within,
    chunk_of,
    cut,
    is_cleared,
    parse_index,
    recut,
)
from sparsyedge.edge.protocol.messages import MAX_BLOB_BYTES, MAX_RANGES, MIN_CHUNK_BYTES, Blob

CHUNK = 1024
CONTENT = bytes(range(256)) * 18  # 4.5 chunks
BLOB = blob_of(CONTENT, chunk_bytes=CHUNK)


def put(assembly: Assembly, *numbers: int) -> None:
    for index in numbers:
        assembly.put(index, chunk_of(CONTENT, BLOB, index))


@given(size=st.integers(0, 5 * CHUNK), data=st.data())
def test_any_order_with_any_duplicates_gives_the_content(size: int, data: st.DataObject) -> None:
    content = bytes(index * 7 % 251 for index in range(size))
    blob = blob_of(content, chunk_bytes=CHUNK)
    order = data.draw(st.permutations(range(blob.chunks)))
    repeats = data.draw(st.lists(st.sampled_from(order), max_size=10))
    assembly = Assembly(blob)
    for index in [*repeats, *order]:
        assembly.put(index, chunk_of(content, blob, index))
    assert assembly.complete
    assert assembly.content() == content


def test_second_arrival_of_a_chunk_changes_nothing() -> None:
    assembly = Assembly(BLOB)
    first = chunk_of(CONTENT, BLOB, 0)
    assert assembly.put(0, first)
    assert not assembly.put(0, bytes(CHUNK))
    put(assembly, 1, 2, 3, 4)
    assert assembly.content() == CONTENT


@pytest.mark.parametrize(
    ("arrived", "missing"),
    [
        ([], ((0, 5),)),
        ([0], ((1, 5),)),
        ([4], ((0, 4),)),
        ([1, 3], ((0, 1), (2, 3), (4, 5))),
        ([0, 1, 2, 3, 4], ()),
    ],
)
def test_missing_chunks_are_named_as_half_open_ranges(arrived: list[int], missing: tuple[tuple[int, int], ...]) -> None:
    assembly = Assembly(BLOB)
    put(assembly, *arrived)
    assert assembly.missing() == missing
    asked_for = [index for index, _ in cut(CONTENT, BLOB, assembly.missing())]
    assert sorted([*arrived, *asked_for]) == [0, 1, 2, 3, 4]


def test_ranges_beyond_the_blob_ask_for_nothing() -> None:
    assert [index for index, _ in cut(CONTENT, BLOB, [(3, 10**12), (7, 9)])] == [3, 4]


@pytest.mark.parametrize(
    ("index", "chunk"), [(-1, CONTENT[:CHUNK]), (5, b""), (0, b""), (0, bytes(CHUNK + 1)), (4, bytes(CHUNK))]
)
def test_chunk_that_cannot_belong_is_refused(index: int, chunk: bytes) -> None:
    with pytest.raises(FrameError, match=f"chunk {index} of blob"):
        Assembly(BLOB).put(index, chunk)


def test_incomplete_blob_has_no_content() -> None:
    assembly = Assembly(BLOB)
    put(assembly, 0, 1)
    assert not assembly.complete
    with pytest.raises(FrameError, match="lacks 3 of 5 chunks"):
        assembly.content()


def test_altered_chunk_is_noticed_at_the_end() -> None:
    assembly = Assembly(BLOB)
    put(assembly, 0, 1, 2, 3)
    assembly.put(4, bytes(len(CONTENT) - 4 * CHUNK))
    with pytest.raises(FrameError, match="was promised"):
        assembly.content()


def test_declared_size_costs_nothing_before_the_first_chunk() -> None:
    assembly = Assembly(Blob(sha256=BLOB.sha256, bytes=1 << 30))
    assert assembly.missing() == ((0, assembly.blob.chunks),)


def test_memory_is_taken_as_chunks_arrive() -> None:
    chunk = bytes(1 << 20)
    tracemalloc.start()
    try:
        assembly = Assembly(Blob(sha256=BLOB.sha256, bytes=1 << 30, chunk_bytes=len(chunk)))
        assembly.put(1023, chunk)
        assembly.put(7, chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert assembly.missing() == ((0, 7), (8, 1023))


def test_a_blob_is_cut_into_chunks_that_make_it_up() -> None:
    chunks = dict(cut(CONTENT, BLOB))
    assert list(chunks) == [0, 1, 2, 3, 4]
    assert b"".join(chunks.values()) == CONTENT
    assert dict(cut(b"", blob_of(b""))) == {0: b""}
    assert len(dict(cut(CONTENT, recut(BLOB, 2 * CHUNK)))) == 3


def test_a_grant_holds_the_first_missing_ranges() -> None:
    blob = Blob(sha256=BLOB.sha256, bytes=(2 * MAX_RANGES + 2) * CHUNK, chunk_bytes=CHUNK)
    assembly = Assembly(blob)
    for index in range(1, blob.chunks, 2):
        assembly.put(index, bytes(CHUNK))
    assert assembly.missing() == tuple((index, index + 1) for index in range(0, 2 * MAX_RANGES, 2))
    assert assembly.missing(2) == ((0, 1), (2, 3))


@pytest.mark.parametrize("level", ["0", "7", "1048575"])
def test_the_number_of_a_chunk_is_read_from_its_topic(level: str) -> None:
    assert parse_index(level) == int(level)


def test_every_chunk_of_the_largest_blob_has_a_number() -> None:
    largest = Blob(sha256=BLOB.sha256, bytes=MAX_BLOB_BYTES, chunk_bytes=MIN_CHUNK_BYTES)
    assert parse_index(str(largest.chunks - 1)) == largest.chunks - 1


@pytest.mark.parametrize("level", ["", "-1", "+", "1.0", "1_0", " 1", "\u0661", "\u00b2", "12345678", "9" * 5000])
def test_anything_else_is_no_number_of_a_chunk(level: str) -> None:
    with pytest.raises(FrameError, match="is not the number of a chunk") as caught:
        parse_index(level)
    assert len(str(caught.value)) < 80


def test_an_empty_payload_takes_a_chunk_back_unless_the_blob_is_empty() -> None:
    assert is_cleared(BLOB, b"")
    assert not is_cleared(BLOB, b"x")
    assert not is_cleared(blob_of(b""), b"")


@pytest.mark.parametrize(("limit", "expected"), [(None, 256), (10**9, 256), (131072, 127), (2000, 1), (10, 1)])
def test_chunks_suit_the_packets_that_a_broker_takes(limit: int | None, expected: int) -> None:
    assert chunk_bytes_within(limit) == expected * 1024
