"""VITS models as Piper exports them: ids of phonemes in, samples out; whole, or piece by piece.

A clause may be begun before it is complete. Its first words go through the first half of the model with the word that
follows, so that they don't sound like an end. Later the whole clause does, and its frames from the next word on are put
behind those of the first words, before the decoder: it joins the two, as everything else. (Prefix-to-prefix synthesis,
Ma et al. 2020, with one word ahead.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True, slots=True)
class Begun:
    ids: NDArray[np.int64]
    """That were said of the clause, up to a space."""
    frames: Any
    """Their last frames, float32, (1, channels, frames)."""
    waiting: int
    """So many of these aren't decoded yet: the decoder has to see what follows them."""


class Model(Protocol):
    def speak(self, inputs: Inputs, begun: Begun | None = None) -> Speech:
        """A clause, or what of it has not been said when it was begun."""
        ...

    def begin(self, inputs: Inputs, words: int, begun: Begun | None) -> tuple[Speech, Begun] | None:
        """The first words of a clause that isn't complete, or more of them."""
        ...


@dataclass(frozen=True, slots=True)
class WholeModel:
    session: Session

    def speak(self, inputs: Inputs, begun: Begun | None = None) -> Speech:
        samples = _flat(self.session.run(None, inputs)[0])
        return Speech(len(samples), iter([samples]))

    def begin(self, inputs: Inputs, words: int, begun: Begun | None) -> None:
        return None


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
    space: int
    """The id between two words."""

    def speak(self, inputs: Inputs, begun: Begun | None = None) -> Speech:
        frames, start, _ = self._frames(inputs, begun)
        return self._speech(frames, start, frames.shape[2], inputs)

    def begin(self, inputs: Inputs, words: int, begun: Begun | None) -> tuple[Speech, Begun] | None:
        said = inputs["input"][0, : self._ids_of(words, inputs)]
        if not words or (begun and len(said) <= len(begun.ids)):
            return None
        frames, start, end = self._frames(inputs, begun, len(said))
        certain = max(start, end - self.context)
        kept = frames[:, :, max(0, certain - self.context) : end]
        return self._speech(frames[:, :, :end], start, certain, inputs), Begun(said, kept, end - certain)

    def _frames(self, inputs: Inputs, begun: Begun | None, ids: int = 0) -> tuple[Any, int, int]:
        """The frames of a clause, behind what is kept of its beginning; where to decode from; where its ids end."""
        frames, durations = self.encoder.run(None, inputs)[:2]
        ends = np.concatenate([[0], np.cumsum(durations.reshape(-1))]).astype(int)
        if begun is None:
            return frames, 0, ends[ids]
        said, kept = ends[self._said(begun, inputs)], begun.frames.shape[2]
        joined = np.concatenate([begun.frames, frames[:, :, said:]], axis=2)
        return joined, kept - begun.waiting, kept + max(0, ends[ids] - said)

    def _said(self, begun: Begun, inputs: Inputs) -> int:
        """How many of the ids were said when it was begun."""
        ids = inputs["input"][0]
        length = min(len(begun.ids), len(ids))
        same = int(np.argmin(np.append(begun.ids[:length] == ids[:length], False)))
        # Two words may have become one, as "of" and "the": then only the space is missing.
        if same >= len(begun.ids) - 1:
            return same
        return self._ids_of(int(np.count_nonzero(begun.ids == self.space)), inputs)

    def _ids_of(self, words: int, inputs: Inputs) -> int:
        """How many ids so many words have, with the space after them; all if there are no more words."""
        ids = inputs["input"][0]
        spaces = np.flatnonzero(ids == self.space)
        return len(ids) if words > len(spaces) else int(spaces[words - 1]) + 1 if words else 0

    def _speech(self, frames: Any, start: int, end: int, inputs: Inputs) -> Speech:
        """total: of all frames from `start` on, also of those behind `end`."""
        total = (frames.shape[2] - start) * self.samples_per_frame
        return Speech(total, self._pieces(frames, start, end, inputs))

    def _pieces(self, frames: Any, start: int, end: int, inputs: Inputs) -> Iterator[Samples]:
        for window in windows(start, end, frames.shape[2], self.context):
            sound = _decode(self.decoder, frames[:, :, window.seen_start : window.seen_end], inputs)
            start, end = window.start - window.seen_start, window.end - window.seen_start
            yield sound[start * self.samples_per_frame : end * self.samples_per_frame]


def windows(start: int, end: int, frames: int, context: int) -> Iterator[Window]:
    """From `start` to `end`, of so many frames that there are."""
    length = FIRST_FRAMES
    while start < end:
        window_end = min(end, start + length)
        yield Window(start, window_end, max(0, start - context), min(frames, window_end + context))
        start, length = window_end, MORE_FRAMES


def joined(encoder: Session, decoder: Session, trial: Inputs, space: int) -> CutModel | None:
    """The halves as a model, if by the trial it makes the same samples in pieces as at once."""
    frames = encoder.run(None, trial)[0]
    whole = _decode(decoder, frames, trial)
    for context in CONTEXTS:
        model = CutModel(encoder, decoder, len(whole) // frames.shape[2], context, space)
        pieces = np.concatenate(list(model._pieces(frames, 0, frames.shape[2], trial)))
        if len(pieces) == len(whole) and np.abs(pieces - whole).max() < SAME:
            return model
    return None


def _decode(decoder: Session, frames: Any, inputs: Inputs) -> Samples:
    first, *others = (each.name for each in decoder.get_inputs())
    return _flat(decoder.run(None, {first: frames} | {name: inputs[name] for name in others})[0])


def _flat(samples: Any) -> Samples:
    return samples.reshape(-1)
