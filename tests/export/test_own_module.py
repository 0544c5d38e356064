"""A user's own module, weights and choices: what is refused, and with which sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from sparsyedge.edge import cli
from sparsyedge.edge.errors import ArtifactError, ConfigError
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.methods import make_method
from sparsyedge.export.build import build_artifacts
from sparsyedge.export.command import main
from sparsyedge.export.model_spec import ModelChoices, ModelSpec
from sparsyedge.export.models import make_module
from sparsyedge.export.own_module import choose_prunable, freeze, train_mode

OWN = f"{Path(__file__).parent / 'modules.py'}"


def made(name: str, **choices: object) -> nn.Module:
    spec = ModelSpec(f"{OWN}:{name}", 1, 5, (3, 8, 8))
    module, _ = make_module(spec, beta=1.25, seed=0, choices=ModelChoices(**choices))  # type: ignore[arg-type]
    return module


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Missing", r"has no callable 'Missing'; it has .*EveryKind"),
        ("not_a_module", r"gave int; it must give a torch\.nn\.Module"),
        ("a_failing_one", r"cannot be made with no arguments: ValueError: no such file"),
        ("TwoOutputs", r"forward returns a tuple of 2; it must return one tensor, \(batch, 5\)"),
        ("Unused", r"the output does not depend on spare\.weight, spare\.bias; remove them"),
        ("in_half_precision", r"parameter 1\.weight is torch\.float16; only float32 trains"),
    ],
)
def test_a_module_that_cannot_be_trained_is_refused_with_a_reason(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        made(name)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("nowhere.py:Net", r"there is no file nowhere\.py"),
        ("no.such.package:Net", r"no\.such\.package cannot be imported: ModuleNotFoundError"),
        ("resnet19", r"no model 'resnet19'; there are: resnet18, .* and your own as FILE\.py:CALLABLE"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(model: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_module(ModelSpec(model, 1, 5, (3, 8, 8)), beta=1.25, seed=0, choices=ModelChoices())


def test_an_output_of_another_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"give an output of shape \(2, 7\); expected \(2, 5\), a number per class"):
        made("Unused", arguments={"classes": 7})


def test_data_of_another_shape_is_refused() -> None:
    spec = ModelSpec(f"{OWN}:TwoOutputs", 1, 5, (3, 9, 9))
    with pytest.raises(ConfigError, match=r"cannot take a batch of shape \(2, 3, 9, 9\): RuntimeError"):
        make_module(spec, beta=1.25, seed=0, choices=ModelChoices())


@pytest.mark.heavy
def test_a_forward_that_looks_at_its_data_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    spec = ModelSpec(f"{OWN}:Branching", 1, 5, (3, 8, 8))
    with pytest.raises(ArtifactError, match=r"torch cannot export Branching as a graph, in its forward .*control flow"):
        build_artifacts(spec, make_method("sparsyfed"), tmp_path / "out", seed=0, check=lambda *_: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("BranchingPart", r"in module stages\.1 \(modules\.py:\d+\): control flow depends on data .*torch\.where"),
        ("WithoutForm", r"no ONNX form of the op aten\.special_i1e\.default in module stages\.2,.* replace it"),
    ],
)
def test_the_command_names_what_cannot_be_exported_and_where_in_one_sentence(
    name: str, sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ["--input-shape", "3", "8", "8", "--classes", "5", "--out", str(tmp_path / "out")]
    assert cli.main(["export", "--model", f"{OWN}:{name}", *flags]) == cli.EXIT_FAULT
    printed, said = capfd.readouterr()
    assert len(printed.splitlines()) == 3  # what it understood of the data
    (line,) = [line for line in said.splitlines() if "[INFO]" not in line]
    assert re.search(sentence, line)
    assert not list(tmp_path.iterdir())


@pytest.mark.heavy
def test_a_model_without_layers_to_prune_is_refused(tmp_path: Path) -> None:
    spec = ModelSpec(f"{OWN}:NothingToPrune", 1, 5, (3, 8, 8))
    with pytest.raises(ConfigError, match=r"no convolution or linear layer that trains.*--prunable PATTERN"):
        build_artifacts(spec, make_method("sparsyfed"), tmp_path / "out", seed=0, check=lambda *_: None)


def test_patterns_that_match_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--train fc9\.\* matches no parameter; there are conv\.weight"):
        made("EveryKind", train="fc9.*")
    with pytest.raises(ConfigError, match=r"--prunable \*\.w matches no trainable parameter; there are a\.weight"):
        choose_prunable(["a.weight", "a.bias"], ["a.weight"], "*.w")


@pytest.mark.parametrize("train", ["last:0", "last:9", "last:x"])
def test_a_number_of_layers_that_the_model_does_not_have_is_refused(train: str) -> None:
    with pytest.raises(ConfigError, match=r"allowed are last:1 to last:7"):
        made("EveryKind", train=train)


def test_the_last_layers_begin_at_the_weight_of_the_first_of_them() -> None:
    module = made("EveryKind", train="last:2")
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    assert trained == ["fc.weight", "fc.bias", "norm.weight", "norm.bias", "head.weight", "head.bias"]


def test_a_frozen_batch_norm_keeps_its_statistics() -> None:
    module = made("EveryKind")
    freeze(module, "head.*", ["head.weight"])
    assert not train_mode(module).get_submodule("bn").training
    assert module.get_submodule("dropout").training


@pytest.mark.heavy
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_weights_from_a_file_are_what_the_network_computes_with(tmp_path: Path, suffix: str) -> None:
    from safetensors.torch import save_file

    spec = ModelSpec(f"{OWN}:SmallResNet", 1, 5, (3, 16, 16))
    module, _ = make_module(spec, beta=1.0, seed=9, choices=ModelChoices())
    path = tmp_path / f"weights.{suffix}"
    state = module.state_dict()
    save_file(state, path) if suffix == "safetensors" else torch.save(state, path)
    artifacts, _ = build_artifacts(
        spec,
        make_method("sparsyfed"),
        tmp_path / "out",
        seed=0,
        check=lambda *_: None,
        choices=ModelChoices(init=path),
    )
    w = torch.from_numpy(read_initial_state(artifacts)["stem.weight"])
    assert torch.allclose(torch.sign(w) * w.abs() ** 1.25, state["stem.weight"], rtol=1e-5)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    torch.save({"head.weight": torch.zeros(5, 3)}, tmp_path / "other.pt")
    with pytest.raises(
        ConfigError, match=r"head\.weight of shape \(5, 16\) has shape \(5, 3\) there; 2\d of 2\d tensors"
    ):
        made("EveryKind", init=tmp_path / "other.pt")
    (tmp_path / "text.pt").write_text("no weights")
    with pytest.raises(ConfigError, match=r"text\.pt cannot be read"):
        made("EveryKind", init=tmp_path / "text.pt")
    with pytest.raises(ConfigError, match=r"there is no file .*missing\.pt"):
        made("EveryKind", init=tmp_path / "missing.pt")


@pytest.mark.heavy
def test_the_command_exports_a_module_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--input-shape",
        "3",
        "8",
        "8",
        "--classes",
        "5",
        "--model-arg",
        "hidden=8",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(["--model", f"{OWN}:EveryKind", *flags]) == 0
    printed = capsys.readouterr().out
    assert "modules.py:EveryKind" in printed
    assert str(Path(__file__).parent) not in printed


@pytest.mark.heavy
def test_a_statistic_of_the_module_s_own_is_not_frozen(tmp_path: Path) -> None:
    spec = ModelSpec(f"{OWN}:Centred", 1, 5, (3, 8, 8))
    method = make_method("sparsyfed", sparsity=0.8, beta=1.25)
    artifacts, _ = build_artifacts(spec, method, tmp_path / "artifacts", seed=0, check=lambda *made: None)
    assert artifacts.manifest.frozen == ("scale",)


def test_frozen_layers_of_the_zoo_compute_with_the_usual_initialisation() -> None:
    spec = ModelSpec("mlp", 16, 5, (12,))
    usual, _ = make_module(spec, beta=1.0, seed=0, choices=ModelChoices())
    frozen, holds_theta = make_module(spec, beta=1.25, seed=0, choices=ModelChoices(train="last:1"))
    assert holds_theta
    assert torch.equal(frozen.get_parameter("fc1.weight"), usual.get_parameter("fc1.weight"))
