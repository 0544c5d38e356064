"""The table of codecs: the one place that names them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from fixtures.repository import REPOSITORY

from sparsyedge.edge.wire.codecs import CODECS, LOSSLESS, Codec, codec_for
from sparsyedge.edge.wire.frame import encode_frame

SOURCES = [path for folder in ("edge", "coordinator", "benchmarks") for path in (REPOSITORY / folder).rglob("*.py")]


def test_every_name_of_a_codec_has_a_row() -> None:
    assert tuple(CODECS) == get_args(Codec)


@pytest.mark.parametrize("codec", CODECS)
def test_a_frame_without_a_base_can_be_made_in_the_codec_of_every_run(codec: Codec) -> None:
    used = codec_for(codec, None)
    state = {"w": np.array([1.0, 0.0, -2.5], dtype=np.float32)}
    encoded = encode_frame(state, run="r", round_number=1, base_id="", codec=used, prunable=["w"])
    assert encoded.decoded["w"].tolist() == [1.0, 0.0, -2.5]
    assert codec_for(codec, state) == codec
    # A base of other tensors alone is none for the weights.
    assert codec_for(codec, {"b": state["w"]}, ["w"]) == used


def test_only_the_table_names_codecs() -> None:
    wire = REPOSITORY / "edge" / "wire"
    allowed = (wire / "codecs.py", wire / "native_codec.py")  # the latter has a function called bf16
    names = re.compile("|".join(f'"{name}"' for name in CODECS))
    assert not [path for path in SOURCES if path not in allowed and _code(path, names)]


def _code(path: Path, names: re.Pattern[str]) -> list[str]:
    """The lines that name a codec outside docstrings."""
    text = re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)
    return [line for line in text.splitlines() if names.search(line)]


def test_everything_but_weights_travels_without_loss() -> None:
    assert not CODECS[LOSSLESS].lossy
