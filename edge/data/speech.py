"""Google Speech Commands: spoken words of one second, from the official folders or from one .npz.

The model gets the raw waveform at 8 kHz as an image of one row, (1, 1, 8000), or a log-mel spectrogram. The official
lists define the test part; we leave out the clips of the validation list.
"""

from __future__ import annotations

import wave
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data.dataset import Dataset, Samples
from sparsyedge.edge.data.download import Archive
from sparsyedge.edge.errors import DataError

__all__ = [
    "SPEECH_ARCHIVE",
    "SPEECH_WORDS",
    "has_speech",
    "log_mel",
    "read_speech_folder",
    "read_speech_npz",
    "resample_to_8k",
]

# Size and checksum as in tensorflow_datasets/url_checksums/speech_commands.txt.
SPEECH_ARCHIVE = Archive(
    url="https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
    checksum="sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
    folder="speech_commands_v0.02",
    size_bytes=2_428_923_189,
    unpacked_bytes=3_500_000_000,  # 105,829 clips of at most eight blocks of 4 KiB
    bare=True,
)

# The folders of that archive, sorted by name.
_WORDS = """
backward bed bird cat dog down eight five follow forward four go happy house learn left marvin nine no off on one right
seven sheila six stop three tree two up visual wow yes zero
"""
SPEECH_WORDS = tuple(_WORDS.split())

RATE = 16_000
CLIP = RATE
"""Samples in one second; every clip is padded or cut to this length."""
NOISE_FOLDER = "_background_noise_"
TEST_LIST, VALIDATION_LIST = "testing_list.txt", "validation_list.txt"
TRAIN, TEST = 0, 2

# Log-mel: frames of 25 ms every 10 ms, 40 bands from 20 Hz to 8 kHz.
FRAME, HOP, FFT, BANDS = 400, 160, 512, 40
# Half-band low-pass: cut at 4 kHz with 31 taps on each side.
TAPS = 31

Int16Array = NDArray[np.int16]


def has_speech(folder: Path) -> bool:
    """Whether `folder` looks like the unpacked archive."""
    return (folder / TEST_LIST).is_file()


def read_speech_folder(folder: Path, *, name: str, mel: bool = False) -> Dataset:
    """The data set in its official folder tree: a folder per word, and two lists of clips not for training."""
    words = sorted(each.name for each in folder.iterdir() if each.is_dir() and each.name != NOISE_FOLDER)
    test, validation = (_read_list(folder / file) for file in (TEST_LIST, VALIDATION_LIST))
    tested, left_out = test - validation, test | validation
    parts: dict[int, list[Samples]] = {TRAIN: [], TEST: []}
    for label, word in enumerate(words):
        paths = {f"{word}/{path.name}": path for path in sorted((folder / word).glob("*.wav"))}
        chosen = {
            TRAIN: [path for key, path in paths.items() if key not in left_out],
            TEST: [path for key, path in paths.items() if key in tested],
        }
        for part, clips in chosen.items():
            if clips:
                # Word by word: all clips at full rate take 3 GB, several times over.
                x = _features(np.stack([_read_wav(path) for path in clips]), mel=mel)
                parts[part].append(Samples(x, np.full(len(clips), label)))
    if not parts[TRAIN] or not parts[TEST]:
        raise DataError(
            f"{folder} has .wav files of {len(words)} words, none for training or none for testing; unpack the archive "
            "of Speech Commands there again"
        )
    return Dataset(name, _join(parts[TRAIN]), _join(parts[TEST]), len(words), tuple(words))


def read_speech_npz(path: Path, *, name: str, mel: bool = False) -> Dataset:
    """The data set in one file: x int16 (clips, 16000), y, names, and split (0 train, 1 validation, 2 test)."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            missing = [key for key in ("x", "y", "names", "split") if key not in stored]
            if missing:
                raise DataError(f"{path} has no {', '.join(missing)}; it must hold the arrays x, y, names and split")
            x, y, names, split = (stored[key] for key in ("x", "y", "names", "split"))
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read as an .npz of plain arrays ({error}); write it again") from error
    if x.dtype != np.int16 or x.ndim != 2 or x.shape[1] != CLIP:
        raise DataError(f"x in {path} is {x.dtype} of shape {x.shape}; expected int16 (clips, {CLIP})")
    train, test = (
        Samples(_features(x[split == part], mel=mel), y[split == part].astype(np.int64)) for part in (TRAIN, TEST)
    )
    return Dataset(name, train, test, len(names), tuple(map(str, names)))


def _features(sound: Int16Array, *, mel: bool) -> Int16Array | NDArray[np.float32]:
    return log_mel(sound) if mel else resample_to_8k(sound)[:, np.newaxis, np.newaxis, :]


def _join(parts: list[Samples]) -> Samples:
    return Samples(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))


def _read_list(path: Path) -> set[str]:
    try:
        return set(path.read_text(encoding="utf-8").split())
    except OSError as error:
        raise DataError(f"{path} is missing ({error}); unpack the archive of Speech Commands there again") from error


def _read_wav(path: Path) -> Int16Array:
    try:
        with wave.open(str(path)) as file:
            form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
            content = file.readframes(CLIP)
    except (OSError, EOFError, wave.Error) as error:
        raise DataError(f"{path} cannot be read as a .wav file ({error}); remove or replace it") from error
    if form != (1, 2, RATE):
        raise DataError(f"{path} has (channels, bytes, rate) {form}; expected (1, 2, {RATE}): convert or remove it")
    clip = np.zeros(CLIP, dtype=np.int16)
    found = np.frombuffer(content, dtype="<i2")
    clip[: len(found)] = found
    return clip


def resample_to_8k(sound: Int16Array, *, block: int = 1024) -> Int16Array:
    """Halve the rate: a windowed-sinc low-pass at 4 kHz, then every other sample; (clips, 16000) to (clips, 8000)."""
    places = np.arange(-TAPS, TAPS + 1)
    kernel = np.sinc(places / 2) / 2 * np.kaiser(2 * TAPS + 1, 8.0)
    kernel /= kernel.sum()
    size = 1 << (CLIP + 2 * TAPS).bit_length()
    response = np.fft.rfft(kernel, size)
    halved = np.empty((len(sound), CLIP // 2), dtype=np.int16)
    for start in range(0, len(sound), block):
        spectrum = np.fft.rfft(sound[start : start + block], size) * response
        filtered = np.fft.irfft(spectrum, size)[:, TAPS : TAPS + CLIP : 2]
        halved[start : start + block] = np.clip(np.rint(filtered), -32768, 32767)
    return halved


def log_mel(sound: Int16Array, *, block: int = 256) -> NDArray[np.float32]:
    """Log-mel spectrograms (clips, 1, 40, frames), each clip with mean 0 and standard deviation 1."""
    window, filters = np.hanning(FRAME), _mel_filters()
    spectrograms = []
    for start in range(0, len(sound), block):
        scaled = sound[start : start + block] / 32768
        frames = np.lib.stride_tricks.sliding_window_view(scaled, FRAME, axis=1)[:, ::HOP]
        power = np.abs(np.fft.rfft(frames * window, FFT)) ** 2
        bands = np.log(power @ filters + 1e-6).transpose(0, 2, 1)
        centred = bands - bands.mean(axis=(1, 2), keepdims=True)
        spread = centred.std(axis=(1, 2), keepdims=True)
        # A silent clip has no spread to divide by.
        spectrograms.append((centred / np.maximum(spread, 1e-3)).astype(np.float32)[:, np.newaxis])
    frames_per_clip = (CLIP - FRAME) // HOP + 1
    return np.concatenate(spectrograms) if spectrograms else np.empty((0, 1, BANDS, frames_per_clip), np.float32)


def _mel_filters() -> NDArray[Any]:
    """Triangles (frequencies, bands), evenly spaced on the mel scale."""
    mels = np.linspace(_to_mel(20.0), _to_mel(RATE / 2), BANDS + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    frequencies = np.fft.rfftfreq(FFT, 1 / RATE)[:, np.newaxis]
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (frequencies - low) / (centre - low), (high - frequencies) / (high - centre)
    return np.maximum(0, np.minimum(rising, falling))


def _to_mel(frequency: float) -> float:
    return float(2595 * np.log10(1 + frequency / 700))
