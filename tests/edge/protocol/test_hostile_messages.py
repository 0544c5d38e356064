"""Control messages that a hostile sender made up: each is a FrameError, whatever is wrong with it."""

import msgspec
import pytest

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.protocol.device_settings import DeviceSettings
from sparsyedge.edge.protocol.messages import DeviceStatus, Offer, Progress, Report, RoundTask, decode, decode_reply
from sparsyedge.edge.protocol.releases import MAX_STATEMENT, Order, Release, Sealed
from sparsyedge.edge.security.succession import Succession

SHA = "0" * 64
# Before 3.14 Python counts levels; since then it looks at the stack, which has room for some 100,000.
DEEP = 2_000_000
BLOB = {"sha256": SHA, "bytes": 10, "chunk_bytes": 1024}
REPORT = {
    "run": "demo",
    "round": 1,
    "phases": {"train": {"seconds": 1.0, "joules": None}},
    "energy_source": "none",
    "energy_kind": "none",
    "bytes_down": 0,
    "bytes_up": 0,
    "steps": 1,
    "loss": 0.5,
    "peak_rss_mb": 100.0,
    "pid": 1,
}
PROGRESS = {"run": "demo", "round": 1, "phase": "train", "step": 12, "steps": 20, "loss": 0.7, "temperature_c": 61.5}
OFFER = {"run": "demo", "round": 1, "base": SHA, "update": BLOB, "samples": 5, "report": REPORT}


def json(content: object) -> bytes:
    return msgspec.json.encode(content)


def test_the_honest_offer_is_taken() -> None:
    assert decode(json(OFFER), Offer).samples == 5


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"run": "\xff"}',
        json({**OFFER, "run": "a/b"}),
        json({**OFFER, "run": "a+"}),
        json({**OFFER, "run": "demo\n"}),
        json({**OFFER, "run": ""}),
        json({**OFFER, "run": "x" * 64}),
        json({**OFFER, "round": 0}),
        json({**OFFER, "round": 1.5}),
        json({**OFFER, "base": SHA.upper().replace("0", "F")}),
        json({**OFFER, "base": SHA + "\n"}),
        json({**OFFER, "samples": 0}),
        json({**OFFER, "samples": -1}),
        json({**OFFER, "update": {**BLOB, "bytes": 2**40}}),
        json({**OFFER, "update": {**BLOB, "bytes": -1}}),
        json({**OFFER, "update": {**BLOB, "chunk_bytes": 1}}),
        json({**OFFER, "update": {**BLOB, "chunk_bytes": 2**30}}),
        json({**OFFER, "update": {**BLOB, "sha256": "../../etc/passwd"}}),
        json({**OFFER, "report": {**REPORT, "energy_kind": "guessed"}}),
        json({**OFFER, "report": {**REPORT, "phases": {"train": {"seconds": -1.0, "joules": None}}}}),
        json({**OFFER, "report": {**REPORT, "loss": None}}),
        json(OFFER).replace(b'"joules":null', b'"joules":null,"deep":' + b"[" * DEEP + b"]" * DEEP),
    ],
)
def test_malformed_offer_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError, match="not a valid Offer"):
        decode(payload, Offer)


@pytest.mark.parametrize(
    "settings",
    [
        "none",
        [],
        {"python": "3" * 41},
        {"machine": 64},
        {"threads": 0},
        {"threads": 10**9},
        {"max_temperature_c": 1e9},
        {"min_battery_percent": -1.0},
        {"wifi_only": "yes"},
    ],
)
def test_a_status_whose_settings_are_out_of_bounds_is_refused(settings: object) -> None:
    status = {"state": "online", "boot_id": "x", "settings": {"a later one": [1, 2, 3]}}
    assert decode(json(status), DeviceStatus).settings == DeviceSettings()
    with pytest.raises(FrameError, match="not a valid DeviceStatus"):
        decode(json({**status, "settings": settings}), DeviceStatus)


@pytest.mark.parametrize(
    "payload",
    [
        json({**PROGRESS, "run": "a/b"}),
        json({**PROGRESS, "round": 0}),
        json({**PROGRESS, "phase": "Train"}),
        json({**PROGRESS, "phase": "train\n"}),
        json({**PROGRESS, "phase": "\x1b[2Jtrain"}),
        json({**PROGRESS, "phase": "x" * 21}),
        json({**PROGRESS, "phase": ""}),
        json({**PROGRESS, "step": -1}),
        json({**PROGRESS, "step": 1.5}),
        json({**PROGRESS, "steps": 10**13}),
        json({**PROGRESS, "loss": 1e300}),
        json({**PROGRESS, "loss": None}),
        json(PROGRESS).replace(b"0.7", b"NaN"),
        json(PROGRESS).replace(b"0.7", b"Infinity"),
        json(PROGRESS).replace(b"0.7", b"1e999"),
        json({**PROGRESS, "temperature_c": "hot"}),
        json({**PROGRESS, "battery_percent": -1e10}),
    ],
)
def test_malformed_progress_is_refused(payload: bytes) -> None:
    assert decode(json(PROGRESS), Progress).step == 12
    with pytest.raises(FrameError):
        decode(payload, Progress)


def test_a_phase_of_a_later_version_is_taken() -> None:
    assert decode(json({**PROGRESS, "phase": "self-check"}), Progress).phase == "self-check"


@pytest.mark.parametrize("kind", [Offer, Report, RoundTask, DeviceStatus, Progress])
def test_a_message_of_another_kind_is_refused(kind: type[Offer | Report | RoundTask | DeviceStatus | Progress]) -> None:
    with pytest.raises(FrameError):
        decode(b'{"type": "grant"}', kind)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        json({"type": "granted", "run": "demo", "round": 1, "update": SHA}),
        json({"run": "demo", "round": 1, "update": SHA}),
        json({"type": "grant", "run": "demo", "round": 1, "update": SHA, "missing": [[-1, 2]]}),
        json({"type": "grant", "run": "demo", "round": 1, "update": SHA, "missing": [[1]]}),
        json({"type": "wait", "run": "demo", "round": 1, "update": SHA, "reason": "", "again_s": -1}),
        json({"type": "wait", "run": "demo", "round": 1, "update": SHA, "reason": "", "again_s": 1e9}),
        json({"type": "wait", "run": "demo", "round": 1, "update": SHA, "reason": "", "again_s": "soon"}),
        json({"type": "refused", "run": "demo", "round": 1, "update": SHA}),
    ],
)
def test_malformed_reply_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError, match="not a valid reply"):
        decode_reply(payload)


TASK = {
    "run": "demo",
    "round": 1,
    "rounds": 2,
    "state": "open",
    "cohort": [],
    "manifest": BLOB,
    "model_id": SHA,
    "model": BLOB,
    "learning_rate": 0.1,
    "epochs": 1,
    "batch_size": 1,
    "sparsity": 0.5,
    "seed": 1,
    "deadline_unix_s": 0.0,
}


@pytest.mark.parametrize("url", ["x" * 501, 7, None, ["https://store.example"]])
def test_a_blob_store_that_is_no_short_text_is_refused(url: object) -> None:
    with pytest.raises(FrameError, match="not a valid RoundTask"):
        decode(json({**TASK, "blobs": url}), RoundTask)


@pytest.mark.parametrize(
    "field",
    [
        {"model_round": -1},
        {"model_round": 2**40},
        {"model_round": 1.5},
        {"model_round": None},
        {"quality": None},
        {"quality": {}},
        {"quality": {"sparsity": 1.5}},
        {"quality": {"sparsity": 0.5, "accuracy": 1.01}},
        {"quality": {"sparsity": 0.5, "accuracy": "best"}},
        {"quality": {"sparsity": 0.5, "rmse": -1.0}},
        {"quality": {"sparsity": 0.5, "r_squared": 2.0}},
    ],
)
def test_a_model_of_impossible_rounds_or_quality_is_refused(field: dict[str, object]) -> None:
    with pytest.raises(FrameError, match="not a valid RoundTask"):
        decode(json({**TASK, **field}), RoundTask)


LEVEL = {"sparsity": 0.99, "model_id": SHA, "model": TASK["model"]}


@pytest.mark.parametrize(
    "levels",
    [
        None,
        {},
        [{}],
        [LEVEL] * 17,
        [{**LEVEL, "sparsity": 1.0}],
        [{**LEVEL, "sparsity": -0.1}],
        [{**LEVEL, "model_id": "0"}],
        [{**LEVEL, "model": None}],
    ],
)
def test_models_of_groups_out_of_bounds_are_refused(levels: object) -> None:
    assert decode(json({**TASK, "levels": [LEVEL] * 16}), RoundTask).levels
    with pytest.raises(FrameError, match="not a valid RoundTask"):
        decode(json({**TASK, "levels": levels}), RoundTask)


HELD = {"run": "demo", "round": 3, "model_id": SHA}


@pytest.mark.parametrize(
    "change",
    [{"run": "a/b"}, {"round": -1}, {"round": 2**40}, {"model_id": "0"}, {"predict_ms": -1.0}, {"predict_ms": 1e9}],
)
def test_a_held_model_out_of_bounds_is_refused(change: dict[str, object]) -> None:
    status = {"state": "online", "boot_id": "0f"}
    assert decode(json({**status, "holds": HELD}), DeviceStatus).holds
    with pytest.raises(FrameError, match="not a valid DeviceStatus"):
        decode(json({**status, "holds": {**HELD, **change}}), DeviceStatus)


def test_a_blob_store_of_an_unknown_scheme_leaves_the_task_readable() -> None:
    assert decode(json({**TASK, "blobs": "ipfs://later"}), RoundTask).blobs == "ipfs://later"


SCORE = {"loss": 1.0, "accuracy": 0.5}
EVALUATED = {"samples": 10, "held_out": True, "before": SCORE, "after": SCORE}
DATA = {"added": 1, "changed": 0, "removed": 0, "broken": 1, "trouble": "half.ppm ends early"}


def test_an_honest_evaluation_is_taken() -> None:
    report = decode(json({**REPORT, "evaluated": EVALUATED, "evaluation": 1, "data": DATA}), Report)
    assert msgspec.to_builtins(report.evaluated) == EVALUATED
    assert msgspec.to_builtins(report.data) == DATA


@pytest.mark.parametrize(
    "fields",
    [
        {"evaluated": {**EVALUATED, "samples": -1}},
        {"evaluated": {**EVALUATED, "samples": 10**9 + 1}},
        {"evaluated": {**EVALUATED, "samples": 1.5}},
        {"evaluated": {**EVALUATED, "before": {**SCORE, "accuracy": 1.01}}},
        {"evaluated": {**EVALUATED, "before": {**SCORE, "accuracy": -0.01}}},
        {"evaluated": {**EVALUATED, "before": {**SCORE, "loss": -1.0}}},
        {"evaluated": {**EVALUATED, "before": {**SCORE, "loss": 1e31}}},
        {"evaluated": {**EVALUATED, "before": {**SCORE, "loss": None}}},
        {"evaluated": {**EVALUATED, "after": {**SCORE, "loss": "NaN"}}},
        {"evaluated": {**EVALUATED, "held_out": "yes"}},
        {"evaluated": []},
        {"evaluation": 0},
        {"evaluation": 2**53 + 1},
        {"data": {**DATA, "added": -1}},
        {"data": {**DATA, "broken": 10**10}},
        {"data": {**DATA, "trouble": "x" * 301}},
        {"data": {**DATA, "trouble": 7}},
        {"loss_rms": -0.1},
        {"loss_rms": "much"},
    ],
)
def test_an_evaluation_a_note_on_data_or_a_loss_out_of_bounds_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(FrameError, match="not a valid Report"):
        decode(json({**REPORT, **fields}), Report)


@pytest.mark.parametrize("number", [b"1e400", b"NaN", b"Infinity", b"-Infinity"])
def test_a_loss_that_is_no_finite_number_is_refused(number: bytes) -> None:
    payload = json({**REPORT, "evaluated": EVALUATED}).replace(b'"before":{"loss":1.0', b'"before":{"loss":' + number)
    with pytest.raises(FrameError, match="not a valid Report"):
        decode(payload, Report)


@pytest.mark.parametrize(
    "fields",
    [{"holdout": 0.0}, {"holdout": -0.1}, {"holdout": 0.51}, {"holdout": "all"}, {"evaluation": 0}, {"evaluate": 1}],
)
def test_a_task_with_an_impossible_evaluation_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(FrameError, match="not a valid RoundTask"):
        decode(json({**TASK, **fields}), RoundTask)


FILE = {"name": "sparsyedge-2.0-py3-none-any.whl", "sha256": SHA, "bytes": 10}
WHEELS = {"python": "3.11", "machine": "aarch64", "files": [FILE], "installed_bytes": 10}
RELEASE = {
    "fleet": "home",
    "version": 1,
    "software": "2.0",
    "issued_unix_s": 1.0,
    "expires_unix_s": 2.0,
    "sets": [WHEELS],
}
ORDER = {"fleet": "home", "device": "pi-01", "serial": 1, "action": "install", "bundle": SHA, "issued_unix_s": 1.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"fleet": "a/b"},
        {"version": 0},
        {"version": 2**60},
        {"software": "2.0; rm -rf /"},
        {"software": "x" * 65},
        {"expires_unix_s": -1.0},
        {"sets": []},
        {"sets": [WHEELS] * 17},
        {"sets": [{**WHEELS, "python": "2.7"}]},
        {"sets": [{**WHEELS, "machine": "../x"}]},
        {"sets": [{**WHEELS, "files": []}]},
        {"sets": [{**WHEELS, "files": [FILE] * 101}]},
        {"sets": [{**WHEELS, "installed_bytes": 2**50}]},
        *(
            {"sets": [{**WHEELS, "files": [{**FILE, "name": name}]}]}
            for name in ("../x.whl", "/etc/x.whl", ".whl", "x.sh", "-x.whl", "a/b.whl", "x" * 300 + ".whl", "x.whl\n")
        ),
        {"sets": [{**WHEELS, "files": [{**FILE, "bytes": 2**40}]}]},
        {"blobs": 5},
        {"blobs": "https://" + "x" * 500},
    ],
)
def test_a_release_out_of_bounds_is_refused(changes: dict[str, object]) -> None:
    assert decode(json(RELEASE), Release).software == "2.0"
    with pytest.raises(FrameError, match="not a valid Release"):
        decode(json({**RELEASE, **changes}), Release)


@pytest.mark.parametrize(
    "changes", [{"device": "+"}, {"serial": 0}, {"action": "obey"}, {"bundle": ""}, {"issued_unix_s": None}]
)
def test_an_order_out_of_bounds_is_refused(changes: dict[str, object]) -> None:
    assert decode(json(ORDER), Order).serial == 1
    with pytest.raises(FrameError, match="not a valid Order"):
        decode(json({**ORDER, **changes}), Order)


@pytest.mark.parametrize(
    "changes",
    [{"statement": "x" * (MAX_STATEMENT + 1)}, {"signature": "zz"}, {"chunk_bytes": 1}, {"chunk_bytes": 2**30}],
)
def test_a_sealed_statement_out_of_bounds_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(FrameError, match="not a valid Sealed"):
        decode(json({"statement": "{}", "signature": "ab" * 64, **changes}), Sealed)


@pytest.mark.parametrize(
    "upgrade",
    [
        {"stage": ""},
        {"stage": "A"},
        {"stage": "x" * 21},
        {"stage": "kept", "order": -1},
        {"stage": "kept", "running": "../x"},
        {"stage": "kept", "reason": "x" * 301},
    ],
)
def test_an_upgrade_out_of_bounds_in_a_status_is_refused(upgrade: dict[str, object]) -> None:
    with pytest.raises(FrameError, match="not a valid DeviceStatus"):
        decode(json({"state": "online", "boot_id": "1", "upgrade": upgrade}), DeviceStatus)


@pytest.mark.parametrize("classes", [7, "all", [101], [-1], [0.5], [0] * 1001, [[1]], {"cat": 1}, None])
def test_classes_out_of_bounds_in_a_status_are_refused(classes: object) -> None:
    status = {"state": "online", "boot_id": "1"}
    assert decode(json({**status, "classes": [0, 100, 1]}), DeviceStatus).classes == (0, 100, 1)
    with pytest.raises(FrameError, match="not a valid DeviceStatus"):
        decode(json({**status, "classes": classes}), DeviceStatus)


FOLLOWS = {"number": 1, "serial": "5d" * 20, "signature": "30" * 70}


@pytest.mark.parametrize(
    "change",
    [
        {"number": 0},
        {"number": 2**53 + 1},
        {"number": 1.5},
        {"serial": ""},
        {"serial": "5D"},
        {"serial": "5d" * 20 + "\n"},
        {"serial": "5" * 41},
        {"signature": ""},
        {"signature": "3" * 71},
        {"signature": "30" * 81},
        {"signature": None},
    ],
)
def test_a_word_about_following_out_of_bounds_in_a_status_is_refused(change: dict[str, object]) -> None:
    status = {"state": "online", "boot_id": "1"}
    assert decode(json({**status, "follows": FOLLOWS}), DeviceStatus).follows
    with pytest.raises(FrameError, match="not a valid DeviceStatus"):
        decode(json({**status, "follows": {**FOLLOWS, **change}}), DeviceStatus)


AUTHORITY = {"ca": "-----BEGIN", "signing_key": "a" * 64}
SUCCESSION = {"fleet": "home", "number": 7, "authorities": [AUTHORITY]}


@pytest.mark.parametrize(
    "change",
    [
        {"fleet": "a/b"},
        {"number": 0},
        {"number": 2**53 + 1},
        {"number": "7"},
        {"authorities": []},
        {"authorities": [AUTHORITY] * 3},
        {"authorities": [{**AUTHORITY, "ca": "x" * 8193}]},
        {"authorities": [{**AUTHORITY, "signing_key": "a" * 63}]},
        {"authorities": [{**AUTHORITY, "signing_key": "A" * 64}]},
    ],
)
def test_a_statement_about_the_authority_out_of_bounds_is_refused(change: dict[str, object]) -> None:
    assert decode(json(SUCCESSION), Succession).number == 7
    with pytest.raises(FrameError, match="not a valid Succession"):
        decode(json({**SUCCESSION, **change}), Succession)
