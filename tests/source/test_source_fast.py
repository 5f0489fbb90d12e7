"""PACE=fast with the real vad: each utterance waits until the reply before it was played."""

from __future__ import annotations

from pathlib import Path

import pytest

from dora_voice.messages import Audio, Control, Message, Played
from dora_voice.stage import Ports, Wait, Work
from dora_voice.testing import Graph
from dora_voice_source.node import BUNDLED
from dora_voice_source.node import PORTS as SOURCE_PORTS
from dora_voice_source.node import Config as SourceConfig
from dora_voice_source.node import build as build_source
from dora_voice_vad.node import PORTS as VAD_PORTS
from dora_voice_vad.node import Config as VadConfig
from dora_voice_vad.node import build as build_vad

RECORDINGS = Path(__file__).parents[1] / "recordings"
REPLY_MS = 5_000
SPEAKER_PORTS = Ports(inputs={"control": Control, "speech": Audio}, outputs={"played": Played}, ends_with=("speech",))


class Speaker:
    """Stands in for all that makes a reply: plays one of 5 s to every committed segment."""

    def process(self, message: Message) -> Work | None:
        return self.reply() if isinstance(message, Control) and message.verb == "commit" else None

    def reply(self) -> Work:
        left_ms = REPLY_MS
        while left_ms > 0:
            left_ms = yield Wait(at_most_ms=left_ms)
        yield Played(port="played", samples=120_000, fin=True)


@pytest.mark.parametrize(
    ("path", "utterances"),
    [
        pytest.param(BUNDLED, 3, id="three-questions"),
        (RECORDINGS / "short-answers.wav", 4),
        (RECORDINGS / "barge-in.wav", 2),
        (RECORDINGS / "hesitation.wav", 1),
        (RECORDINGS / "resumed.wav", 1),
        (RECORDINGS / "silence.wav", 0),
    ],
    ids=lambda value: getattr(value, "stem", None),
)
def test_nobody_is_interrupted_and_no_time_is_wasted(path: Path, utterances: int) -> None:
    graph = Graph(
        {
            "source": (build_source(SourceConfig(audio_in=str(path), pace="fast")), SOURCE_PORTS),
            "vad": (build_vad(VadConfig()), VAD_PORTS),
            "speaker": (Speaker(), SPEAKER_PORTS),
        },
        {
            "vad/audio": "source/audio",
            "vad/played": "speaker/played",
            "speaker/control": "vad/control",
            "speaker/speech": "vad/speech",
            "source/control": "vad/control",
            "source/played": "speaker/played",
        },
    )
    graph.advance(utterances * REPLY_MS + 5_000)
    verbs = [message.verb for message in graph.drivers["vad"].sent if isinstance(message, Control)]
    assert verbs.count("commit") == utterances
    assert not {"pause", "flush"}.intersection(verbs)
    assert graph.drivers["source"].sent[-1].finish
