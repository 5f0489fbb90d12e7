"""VITS models as Piper exports them: ids of phonemes in, samples out; whole, or piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dora_voice.audio import Samples
from dora_voice_tts.voice import Speech

FIRST_FRAMES = 24
MORE_FRAMES = 48
"""In one piece. Small pieces come sooner, large ones cost less."""
CONTEXTS = (10, 20)
"""Frames on each side of a piece that the decoder may have to see; 10 do for all but the voices called high."""
SAME = 1e-4
"""Samples that differ by less differ by rounding only."""

Inputs = Mapping[str, Any]
"""The model's inputs, by name."""


class Session(Protocol):
    """The part of onnxruntime.InferenceSession that is used here."""

    def run(self, output_names: Any, input_feed: Any, /) -> Any: ...

    def get_inputs(self) -> Any: ...


class Model(Protocol):
    def speak(self, inputs: Inputs) -> Speech: ...


@dataclass(frozen=True, slots=True)
class WholeModel:
    session: Session

    def speak(self, inputs: Inputs) -> Speech:
        samples = _flat(self.session.run(None, inputs)[0])
        return Speech(len(samples), iter([samples]))


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of a clause in frames, and what the decoder has to see for it."""

    start: int
    end: int
    seen_start: int
    seen_end: int


@dataclass(frozen=True, slots=True)
class CutModel:
    """The same samples from a model that was cut before its decoder. Frames are what comes out of its first half."""

    encoder: Session
    decoder: Session
    samples_per_frame: int
    context: int

    def speak(self, inputs: Inputs) -> Speech:
        frames = self.encoder.run(None, inputs)[0]
        return Speech(frames.shape[2] * self.samples_per_frame, self._pieces(frames, inputs))

    def _pieces(self, frames: Any, inputs: Inputs) -> Iterator[Samples]:
        for window in windows(frames.shape[2], self.context):
            sound = _decode(self.decoder, frames[:, :, window.seen_start : window.seen_end], inputs)
            start, end = window.start - window.seen_start, window.end - window.seen_start
            yield sound[start * self.samples_per_frame : end * self.samples_per_frame]


def windows(frames: int, context: int) -> Iterator[Window]:
    start, length = 0, FIRST_FRAMES
    while start < frames:
        end = min(frames, start + length)
        yield Window(start, end, max(0, start - context), min(frames, end + context))
        start, length = end, MORE_FRAMES


def joined(encoder: Session, decoder: Session, trial: Inputs) -> CutModel | None:
    """The halves as a model, if by the trial it makes the same samples in pieces as at once."""
    frames = encoder.run(None, trial)[0]
    whole = _decode(decoder, frames, trial)
    for context in CONTEXTS:
        model = CutModel(encoder, decoder, len(whole) // frames.shape[2], context)
        pieces = np.concatenate(list(model._pieces(frames, trial)))
        if len(pieces) == len(whole) and np.abs(pieces - whole).max() < SAME:
            return model
    return None


def _decode(decoder: Session, frames: Any, inputs: Inputs) -> Samples:
    first, *others = (each.name for each in decoder.get_inputs())
    return _flat(decoder.run(None, {first: frames} | {name: inputs[name] for name in others})[0])


def _flat(samples: Any) -> Samples:
    return samples.reshape(-1)
