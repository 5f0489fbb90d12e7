"""Interruptions, resumptions and false alarms at any moment, in the whole conversation on a sample clock.

Each seed is a schedule: what the user says, how long, and just after what. Models are fakes that take their time, on a
computer that may be slow; every message is under way for up to 30 ms; utterances may be too long; the source may
restart. Whatever happens, the next question is answered, who is not interrupted hears the whole answer, every segment
that lives ends once on each output, nothing dead is sent or heard, what is remembered and written down is what was said
and heard, and in the end the session finishes everywhere.

200 schedules by default, which take less than a minute of computing. All of them, and one that failed, again:

    FUZZ_SCHEDULES=10000 pytest -q tests/conversation/test_fuzz.py
    FUZZ_FROM=1234 FUZZ_SCHEDULES=1 pytest -q tests/conversation/test_fuzz.py
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import yaml
from conversation.network import Effort, Network
from conversation.record import ENDING, Record
from conversation.talking import (
    WINDOW_MS,
    WINDOW_SAMPLES,
    SlowModel,
    SlowRecognizer,
    SlowVoice,
    Utterance,
    loud_is_speech,
    schedule,
)

from dora_voice.audio import EMPTY, Samples
from dora_voice.messages import SOURCE_RATE_HZ, Audio, Message
from dora_voice.stage import Work
from dora_voice_llm import node as llm
from dora_voice_llm.service import Service
from dora_voice_llm.stage import LlmStage
from dora_voice_session.pool import Limits
from dora_voice_session.schema import Generation, SessionSettings
from dora_voice_sink import node as sink
from dora_voice_speaker import node as speaker
from dora_voice_speaker.stage import SpeakerStage
from dora_voice_stt import node as stt
from dora_voice_stt.stage import SttStage
from dora_voice_tts import node as tts
from dora_voice_tts.stage import TtsStage
from dora_voice_vad import node as vad
from dora_voice_vad.config import Config as VadConfig
from dora_voice_vad.stage import VadStage

DATAFLOW = yaml.safe_load((Path(__file__).parents[2] / "dataflow.yml").read_text())["nodes"]
SCHEDULES = int(os.environ.get("FUZZ_SCHEDULES", "200"))
FROM = int(os.environ.get("FUZZ_FROM", "0"))
MOST_DELAY_MS = 30
LONGEST_WAIT_WINDOWS = 1_500 // WINDOW_MS
"""For a moment that doesn't come."""
SETTLED_WINDOWS = 2_600 // WINDOW_MS
"""After so much silence every utterance has ended, and it is decided what it was."""
FINAL_WINDOWS = 20
SLOWNESS = {"stt": (1, 1, 5), "llm": (1, 1, 5), "tts": (1, 1, 1.5)}
"""A slow computer is as much as a voice that can't quite keep up."""
LONGEST_END_MS = 30_000
MAX_UTTERANCE_S = (30, 30, 3)
"""The last is too short for a few utterances in one breath."""


class RecordedSpeaker:
    """Plays into the record."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def begin(self, restarts: int) -> None:
        pass

    def play(self, sound: Samples) -> None:
        self._record.play(sound)

    def close(self) -> None:
        pass


class Talk:
    """One conversation, from a seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        random = Random(seed)
        self.said = schedule(random)
        self.last = Utterance(len(self.said) + 1, "question", FINAL_WINDOWS, "", SETTLED_WINDOWS)
        max_utterance_s = random.choice(MAX_UTTERANCE_S)
        self.record = Record()
        self._folder = folder
        efforts = {name: Effort(Random(f"{seed} {name}"), random.choice(many)) for name, many in SLOWNESS.items()}
        nodes = {
            "vad": (_vad(max_utterance_s), vad.PORTS),
            "stt": (SttStage(SlowRecognizer([*self.said, self.last], efforts["stt"]), max_utterance_s, 500), stt.PORTS),
            "llm": (_llm(efforts["llm"]), llm.PORTS),
            "tts": (_tts(efforts["tts"]), tts.PORTS),
            "speaker": (
                SpeakerStage(RecordedSpeaker(self.record), is_fast=False, longest_pause_ms=4000, longest_queue_s=300),
                speaker.PORTS,
            ),
            "sink": (sink.build(sink.Config(out_dir=str(folder))), sink.PORTS),
        }
        edges = {
            f"{node['id']}/{port}": edge["source"]
            for node in DATAFLOW
            for port, edge in node["inputs"].items()
            if node["id"] in nodes
        }
        self.network = Network(
            nodes, edges, efforts, random, MOST_DELAY_MS, self.record.note_sent, self.record.note_received
        )
        self.record.clock = self.network.clock

    def hold(self) -> None:
        for utterance in [*self.said, self.last]:
            if utterance.restarts:
                self._say(EMPTY, error="restarted: node source crashed")
            for level in self._sound(utterance):
                self._listen(level)
        for _ in range(LONGEST_END_MS // WINDOW_MS):
            self._listen(0)
            if self._is_over:
                break
        self.network.advance(500)
        self.history = self._remembered()
        self._say(EMPTY, finish=True)
        self.network.advance(1000)

    @property
    def problems(self) -> list[str]:
        found = list(self.record.found([*self.said, self.last]))
        if not (final := self.record.segments[-1:]) or not self.record.user_text(final[0]).endswith(self.last.text):
            found.append("the last question was not understood")
        elif not "".join(m.text for m in self.record.of("llm/text", final[0])).endswith(self.last.text):
            found.append("the last question was not answered")
        if not self.network.is_idle:
            found.append("somebody hangs")
        for name, driver in self.network.drivers.items():
            if counts := {what: count for what, count in driver.intake.counts.items() if what != "stale"}:
                found.append(f"{name} counted {counts}")
        found += [f"{output} did not finish" for output in ENDING if output not in self.record.finished]
        self.network.close()
        lines = (self._folder / "conversation.jsonl").read_text().splitlines()
        return found + list(self.record.differences(self.history, [json.loads(line) for line in lines]))

    def _remembered(self) -> list[tuple[str, str]]:
        conversation = self.network.drivers["llm"].stage._conversations.get("a")
        return [(message.role, message.text) for message in conversation.history()]

    @property
    def _is_over(self) -> bool:
        return bool(final := self.record.of("speaker/played", self.record.segments[-1])) and final[-1].fin

    def _sound(self, utterance: Utterance) -> Iterator[float]:
        """Level by level, a window each: silence until it is time, then what is said."""
        already, waited = self.record.moments[utterance.after], 0
        while utterance.after and self.record.moments[utterance.after] == already and waited < LONGEST_WAIT_WINDOWS:
            waited += 1
            yield 0.0
        yield from [0.0] * utterance.silence_windows
        yield from utterance.levels

    def _listen(self, level: float) -> None:
        self.network.advance(WINDOW_MS)
        self._say(np.full(WINDOW_SAMPLES, level, np.float32))

    def _say(self, samples: Samples, finish: bool = False, error: str | None = None) -> None:
        about = {"session_id": "a", "finish": finish, "error": error}
        self.network.say(Audio(port="audio", samples=samples, sample_rate=SOURCE_RATE_HZ, **about))


def _vad(max_utterance_s: int) -> VadStage:
    config = VadConfig()
    return VadStage(
        lambda: loud_is_speech,
        replace(config.limits, max_utterance_samples=max_utterance_s * SOURCE_RATE_HZ),
        config.rules,
        own_backchannels=config.backchannels,
        stall_ms=config.stall_ms,
        most_sessions=config.sessions,
    )


def _llm(effort: Effort) -> LlmStage:
    settings = SessionSettings(generation=Generation(max_new_tokens=500))
    return LlmStage(Service(SlowModel(effort), "the fake model", Limits(2000), settings, Path("/nonexistent")))


def _tts(effort: Effort) -> TtsStage:
    voice = SlowVoice(effort)
    stage = TtsStage(voice, 1500)
    process = stage.process

    def process_in_the_voice_of_its_segment(message: Message) -> Work | None:
        if message.port == "text":
            voice.segment_id = message.segment_id
        return process(message)

    stage.process = process_in_the_voice_of_its_segment
    return stage


@pytest.mark.parametrize("seed", range(FROM, FROM + SCHEDULES))
def test_whatever_the_user_does_the_next_question_is_answered_and_history_is_what_was_heard(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with TemporaryDirectory() as folder:
        talk = Talk(seed, Path(folder))
        talk.hold()
        problems = talk.problems
    problems += [f"logged: {record.getMessage()} {record.exc_text or ''}" for record in caplog.records]
    if problems:
        told = [f"FUZZ_FROM={seed} FUZZ_SCHEDULES=1", *problems, "the user:", *map(str, [*talk.said, talk.last])]
        pytest.fail("\n".join([*told, "what was sent:", str(talk.record)]), pytrace=False)
