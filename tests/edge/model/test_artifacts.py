import hashlib
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from sparsyedge.edge.compatibility import OURS, Demand, Speaks, which_upgrade
from sparsyedge.edge.data import Task
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.model.artifacts import (
    API_ROLES,
    MANIFEST_NAME,
    MANIFEST_VERSION,
    Artifacts,
    FileRole,
    amend_manifest,
    decode_manifest,
    encode_manifest,
    needed_features,
)
from sparsyedge.edge.native import ABI_VERSION

ROLES = get_args(FileRole)


def content_of(role: str) -> bytes:
    return f"the {role} graph".encode()


def manifest() -> dict[str, Any]:
    return {
        "version": MANIFEST_VERSION,
        "ops_abi": ABI_VERSION,
        "model": "resnet18",
        "width": 16,
        "classes": 10,
        "input_shape": [3, 32, 32],
        "method": {
            "name": "sparsyfed",
            "beta": 1.25,
            "sparsity": 0.95,
            "weight_decay": 1e-3,
            "prune_activations": True,
            "zero_grad_at_zero": False,
        },
        "seed": 1337,
        "opset": 17,
        "made_with": {"torch": "2.13.0"},
        "parameters": [
            {"name": "conv.weight", "shape": [16, 3, 3, 3], "trainable": True, "prunable": True},
            {"name": "bn.mean", "shape": [16], "trainable": False, "prunable": False},
        ],
        "batch_norms": [],
        "batch_norm_momentum": 0.9,
        "initial_model": "0" * 64,
        "files": {
            role: {
                "name": f"{role}.onnx",
                "sha256": hashlib.sha256(content_of(role)).hexdigest(),
                "bytes": len(content_of(role)),
            }
            for role in ROLES
        },
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for role in ROLES:
        (tmp_path / f"{role}.onnx").write_bytes(content_of(role))
    (tmp_path / MANIFEST_NAME).write_bytes(msgspec.json.encode(manifest()))
    return tmp_path


def refuse(content: dict[str, Any]) -> str:
    with pytest.raises(ArtifactError) as caught:
        decode_manifest(msgspec.json.encode(content), source="manifest.json")
    assert "sparsyedge export" in str(caught.value)
    return str(caught.value)


def test_whole_folder_is_loaded(folder: Path) -> None:
    artifacts = Artifacts.load(folder)
    assert artifacts.path("training").read_bytes() == content_of("training")
    assert artifacts.manifest.shapes == {"conv.weight": (16, 3, 3, 3), "bn.mean": (16,)}
    assert artifacts.manifest.prunable == ("conv.weight",)


def test_manifest_survives_its_own_encoding(folder: Path) -> None:
    artifacts = Artifacts.load(folder)
    encoded = encode_manifest(artifacts.manifest)
    assert decode_manifest(encoded, source="x") == artifacts.manifest
    artifacts.save_manifest()
    assert (folder / MANIFEST_NAME).read_bytes() == encoded


def test_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no manifest\.json in .*`sparsyedge export"):
        Artifacts.load(tmp_path)


def test_missing_file_is_named(folder: Path) -> None:
    (folder / "eval.onnx").unlink()
    with pytest.raises(ArtifactError, match=r"eval\.onnx is missing though the manifest names it"):
        Artifacts.load(folder)


def test_altered_file_is_refused_with_both_hashes(folder: Path) -> None:
    (folder / "training.onnx").write_bytes(b"another graph")
    found = hashlib.sha256(b"another graph").hexdigest()[:12]
    expected = hashlib.sha256(content_of("training")).hexdigest()[:12]
    with pytest.raises(ArtifactError, match=rf"training\.onnx has SHA-256 {found}\.\.\., the manifest says {expected}"):
        Artifacts.load(folder)


def test_newer_manifest_is_refused_before_the_rest_is_read_with_upgrading_as_the_next_move() -> None:
    sentence = refuse({"version": 99, "ops_abi": ABI_VERSION, "something": "new"})
    assert f"version 99, this sparsyedge reads version {OURS.manifest}; upgrade sparsyedge on this" in sentence


def test_older_manifest_is_refused_with_exporting_again_as_the_next_move() -> None:
    sentence = refuse({"version": 4, "ops_abi": ABI_VERSION})
    assert f"version 4, this sparsyedge reads version {OURS.manifest}; it was made by an older one" in sentence
    assert "upgrade" not in sentence


def test_manifest_for_another_op_library_is_refused() -> None:
    newer, older = (refuse({**manifest(), "ops_abi": abi}) for abi in (99, 1))
    assert f"ABI 99, this sparsyedge has ABI {ABI_VERSION}; upgrade sparsyedge on this machine" in newer
    assert f"ABI 1, this sparsyedge has ABI {ABI_VERSION}; it was made by an older one" in older


def test_a_regression_is_written_into_the_manifest_and_classes_are_not() -> None:
    classes = decode_manifest(msgspec.json.encode(manifest()), source="it")
    regression = msgspec.structs.replace(classes, task="regression", classes=1)
    assert classes.task == "classes"
    assert b"task" not in encode_manifest(classes)
    assert decode_manifest(encode_manifest(regression), source="it") == regression
    assert (regression.form.task, regression.form.outputs) == ("regression", 1)


@pytest.mark.parametrize(
    ("shape", "task", "needs"),
    [
        ((3, 8, 8), "classes", ()),
        ((3, 8, 8), "regression", ("regression",)),
        ((10,), "classes", ("sample-shapes",)),
        ((3, 128), "regression", ("regression", "sample-shapes")),
    ],
)
def test_devices_that_know_only_classes_of_images_are_told_what_they_lack(
    shape: tuple[int, ...], task: Task, needs: object
) -> None:
    assert needed_features(shape, task) == needs
    older = Speaks(protocol=OURS.protocol, manifest=OURS.manifest)
    reason = which_upgrade("pi", "sparsyedge 0.2.0", older, Demand(needs=needed_features(shape, task) or ()))
    assert reason.startswith("upgrade sparsyedge on pi" if needs else "")
    assert bool(reason) == bool(needs)


def test_manifest_that_needs_an_unknown_feature_is_refused_before_the_rest_is_read() -> None:
    sentence = refuse({"version": MANIFEST_VERSION, "ops_abi": ABI_VERSION, "needs": ["tied-weights"]})
    assert "needs `tied-weights`, which this sparsyedge does not have; upgrade sparsyedge on this machine" in sentence


def test_fields_and_files_of_a_later_version_change_nothing() -> None:
    content = manifest()
    plain = decode_manifest(msgspec.json.encode(content), source="x")
    content["added_later"] = {"deep": [1]}
    content["parameters"][0]["added_later"] = 1
    content["files"]["vocabulary"] = {"name": "words.txt", "sha256": "0" * 64, "bytes": 5, "added_later": 1}
    later = decode_manifest(msgspec.json.encode(content), source="x")
    assert later.files.pop("vocabulary").name == "words.txt"
    assert later == plain


def test_a_method_is_understood_in_full_or_refused() -> None:
    # Every field of it changes what is trained, so none may be ignored.
    content = manifest()
    content["method"]["added_later"] = 1
    assert "unknown field `added_later` - at `$.method`" in refuse(content)


def test_amending_a_manifest_keeps_what_a_later_version_has_put_into_it(folder: Path) -> None:
    content = encode_manifest(Artifacts.load(folder).manifest)
    assert amend_manifest(content) == content
    later = content.replace(b"{\n", b'{\n  "added_later": 1,\n', 1)
    assert amend_manifest(later, max_epochs=3) == later.replace(b'"max_epochs": 1000', b'"max_epochs": 3')


@pytest.mark.parametrize("name", ["../evil.onnx", "/etc/passwd", "a/b.onnx", "..", ".hidden", "", "a\0b", "x\n", "é"])
def test_file_name_that_is_a_path_is_refused(name: str) -> None:
    content = manifest()
    content["files"]["training"]["name"] = name
    assert "not a valid manifest" in refuse(content)


@pytest.mark.parametrize("role", ["checkpoint", "inference", "sparse_plan", "sparse_step"])
@pytest.mark.parametrize("has_api_files", [True, False])
def test_role_without_a_file_is_named(role: str, has_api_files: bool) -> None:
    content = manifest() if has_api_files else without_api_files()
    del content["files"][role]
    assert f"names no {role} file" in refuse(content)


def without_api_files() -> dict[str, Any]:
    content = manifest()
    for role in API_ROLES:
        del content["files"][role]
    return content


def test_files_of_the_training_api_may_be_missing() -> None:
    found = decode_manifest(msgspec.json.encode(without_api_files()), source="x")
    assert not found.has_api_files
    assert decode_manifest(msgspec.json.encode(manifest()), source="x").has_api_files


@pytest.mark.parametrize("role", API_ROLES)
def test_files_of_the_training_api_are_all_there_or_none(role: str) -> None:
    content = manifest()
    del content["files"][role]
    assert f"names no {role} file" in refuse(content)


def test_a_manifest_of_version_5_has_all_files() -> None:
    content = {**without_api_files(), "version": 5}
    assert "names no training file" in refuse(content)
    assert decode_manifest(msgspec.json.encode({**manifest(), "version": 5}), source="x").version == 5


@pytest.mark.parametrize(
    "content",
    [b"", b"not json", b"[]", b"\xff\xfe", b'{"version": "1"}', b'{"deep": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"],
)
def test_bytes_that_are_no_manifest_are_refused(content: bytes) -> None:
    with pytest.raises(ArtifactError, match="is not a manifest"):
        decode_manifest(content, source="manifest.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("width", 0),
        ("classes", -1),
        ("input_shape", []),
        ("input_shape", [3, 0]),
        ("input_shape", [1, 3, 3, 3, 3]),
        ("task", "guessing"),
        ("initial_model", "xyz"),
        ("max_epochs", 0),
    ],
)
def test_field_out_of_bounds_is_refused(key: str, value: object) -> None:
    assert "not a valid manifest" in refuse({**manifest(), key: value})
