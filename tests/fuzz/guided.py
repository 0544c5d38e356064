"""One target with atheris, which follows coverage: `python -m fuzz.guided TARGET INPUTS LIMIT_S SEED`."""

from __future__ import annotations

import gc
import random
import shutil
import sys
from pathlib import Path
from types import FunctionType

import atheris
from fuzz.mutation import one_altered
from fuzz.target import target

WORKPLACE = Path("build/fuzz")
MAX_BYTES = 1 << 15


def main() -> None:
    name, inputs, limit_s, seed = sys.argv[1:]
    what = target(name)
    _instrument()
    corpus = WORKPLACE / f"{name}-corpus"
    # What an earlier run has added would make this one another.
    shutil.rmtree(corpus, ignore_errors=True)
    corpus.mkdir(parents=True)
    seeds = what.corpus()

    # Parsers in C and Rust are not seen by the feedback, which keeps few seeds for them: every other input is one of
    # ours, altered without it.
    def mutate(data: bytes, max_size: int, number: int) -> bytes:
        rng = random.Random(number)
        altered: bytes = one_altered(seeds, rng)[:max_size] if rng.randrange(2) else atheris.Mutate(data, max_size)
        return altered

    for number, data in enumerate(seeds):
        (corpus / f"{number:03d}").write_bytes(data)
    options = [f"-runs={inputs}", f"-max_total_time={limit_s}", f"-seed={seed}", "-timeout=20", "-rss_limit_mb=2048"]
    options += [f"-max_len={MAX_BYTES}", "-len_control=0", f"-artifact_prefix={WORKPLACE}/{name}-"]
    atheris.Setup(["fuzz", *options, str(corpus)], what.check, custom_mutator=mutate)
    atheris.Fuzz()


def _instrument() -> None:
    """Have every function of ours counted: atheris's own import hook does not see through an editable install."""
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and str(thing.__module__).startswith("sparsyedge."):
            atheris.instrument_func(thing)


main()
