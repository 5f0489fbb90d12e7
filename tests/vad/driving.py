"""Drives the vad with sound and what other nodes tell it. The detector is a fake: loud is speech."""

from __future__ import annotations

from typing import Any

import numpy as np

from dora_voice.messages import Audio, Control, Message, Played, Text
from dora_voice.testing import Driver, silence, tone
from dora_voice_vad.config import Config
from dora_voice_vad.listener import Detector, Judge
from dora_voice_vad.node import PORTS
from dora_voice_vad.stage import VadStage

SPEECH, PAUSE = tone(640), silence(1_024)


def loud_is_speech(window: np.ndarray) -> float:
    return float(np.abs(window).max() > 0.1)


def stage(config: Config, detect: Detector = loud_is_speech, judge: Judge | None = None) -> VadStage:
    return VadStage(
        lambda: detect,
        config.limits,
        config.rules,
        own_backchannels=config.backchannels,
        stall_ms=config.stall_ms,
        most_sessions=config.sessions,
        judge=judge,
    )


def vad(restarts: int = 0, wired: set[str] | None = None, **settings: Any) -> Driver:
    return Driver(stage(Config(**settings)), PORTS, wired=wired or {"audio", "played"}, restarts=restarts)


def reads_too(**settings: Any) -> Driver:
    """One that is told what is said."""
    return vad(wired={"audio", "played", "hypothesis", "reply"}, **settings)


def read(
    driver: Driver, segment_id: int, text: str, fin: bool = True, sure: int | None = None, error: str | None = None
) -> list[Message]:
    """sure: so many characters are."""
    about = {"session_id": "a", "segment_id": segment_id, "fin": fin, "error": error}
    driver.feed(Text(port="hypothesis", text=text, text_end=sure, **about))
    return driver.run()


def say(driver: Driver, segment_id: int, text: str, heard_chars: int, fin: bool = False) -> None:
    """A reply, and so much of it was heard; with `fin` nothing more will be."""
    about = {"session_id": "a", "segment_id": segment_id}
    driver.feed(Text(port="reply", text=text, **about))
    driver.feed(Played(port="played", samples=9_600, text_end=heard_chars, fin=fin, **about))
    driver.run()


def hear(driver: Driver, *sounds: np.ndarray, session: str = "a", rate_hz: int = 16_000) -> list[Message]:
    for sound in sounds:
        driver.feed(Audio(port="audio", samples=sound, sample_rate=rate_hz, session_id=session))
    return driver.run()


def finish(driver: Driver, session: str = "a") -> list[Message]:
    driver.feed(Audio(port="audio", samples=silence(0), sample_rate=16_000, session_id=session, finish=True))
    return driver.run()


def heard(driver: Driver, segment_id: int, samples: int = 24_000, fin: bool = True) -> None:
    driver.feed(Played(port="played", samples=samples, session_id="a", segment_id=segment_id, fin=fin))
    driver.run()


def verbs(messages: list[Message], session: str = "a") -> list[tuple[str, int | None]]:
    return [(m.verb, m.segment_id) for m in messages if isinstance(m, Control) and m.session_id == session]


def speech(messages: list[Message], segment_id: int, session: str = "a") -> list[Audio]:
    return [m for m in messages if isinstance(m, Audio) and (m.session_id, m.segment_id) == (session, segment_id)]


def whole(fragments: list[Audio]) -> np.ndarray:
    return np.concatenate([fragment.samples for fragment in fragments])
