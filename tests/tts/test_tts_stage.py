"""The stage speaks while the reply is being written, paced by what is heard, and says which text each sound is."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_voice.audio import Samples, resample
from dora_voice.config import ConfigError, from_env
from dora_voice.messages import Audio, Control, Message, Played, Text
from dora_voice.testing import Driver, tone
from dora_voice_tts.fake import MS_PER_CHARACTER, FakeVoice
from dora_voice_tts.node import PORTS, Config, build
from dora_voice_tts.stage import CHUNK_SAMPLES, MOST_REPLIES, TtsStage
from dora_voice_tts.voice import Speech

CHUNK_MS = 20
AHEAD_MS = 1500
RESAMPLER_MS = 30
"""More than it holds back."""


class Voice:
    """The fake voice, remembering what it was told to say."""

    name = "voice"
    rate_hz = 22_050

    def __init__(self) -> None:
        self.said: list[str] = []
        self.begins = False
        """Whether it says the first words of a clause before it knows all."""
        self.pieces = 0
        """Made until now."""

    def speak(self, text: str, begun: int | None = None) -> Speech:
        """A piece per character."""
        self.said.append(text)
        if "explode" in text:
            raise RuntimeError("no phonemes")
        speech = FakeVoice().speak(text, begun)
        return Speech(speech.total_samples, map(self._make, speech.pieces))

    def begin(self, words: str, next_word: str, begun: int | None) -> tuple[Speech, int] | None:
        if not self.begins:
            return None
        self.said.append(f"{words} ({next_word})")
        speech, begun = FakeVoice().begin(words, next_word, begun)
        return Speech(speech.total_samples, map(self._make, speech.pieces)), begun

    def _make(self, piece: Samples) -> Samples:
        self.pieces += 1
        return piece


@pytest.fixture
def voice() -> Voice:
    return Voice()


@pytest.fixture
def driver(voice: Voice) -> Driver:
    """Speaks without pacing."""
    return Driver(TtsStage(voice, AHEAD_MS), PORTS, wired={"text", "control"})


@pytest.fixture
def paced(voice: Voice) -> Driver:
    return Driver(TtsStage(voice, AHEAD_MS), PORTS)


def text(fragment: str, segment_id: int = 1, seq: int = 0, session_id: str = "a", **more: Any) -> Text:
    return Text(port="text", text=fragment, session_id=session_id, segment_id=segment_id, seq=seq, **more)


def control(verb: str, segment_id: int) -> Control:
    return Control(port="control", verb=verb, session_id="a", segment_id=segment_id)


def played(samples: int, segment_id: int = 1, fin: bool = False) -> Played:
    return Played(port="played", samples=samples, session_id="a", segment_id=segment_id, fin=fin)


def audio(messages: list[Message]) -> list[Audio]:
    return [message for message in messages if isinstance(message, Audio)]


def sound_ms(messages: list[Message]) -> int:
    return sum(len(message.samples) for message in audio(messages)) // 24


def length_ms(text: str) -> float:
    """Of what the voice says, whose sound is the fake voice's at another rate."""
    return len(text) * MS_PER_CHARACTER * FakeVoice.rate_hz / Voice.rate_hz


def spans(messages: list[Message]) -> list[tuple[int, int]]:
    return [(message.text_start or 0, message.text_end or 0) for message in audio(messages)]


def test_a_clause_is_spoken_before_the_reply_is_complete(driver: Driver, voice: Voice) -> None:
    driver.feed(text("It is Paris. I"))
    sent = driver.run()
    assert voice.said == ["It is Paris."]
    assert spans(sent)[-1][1] == 12
    driver.feed(text(" think", seq=1), text("", seq=2, fin=True))
    assert spans(driver.run())[-1] == (20, 20)
    assert voice.said == ["It is Paris.", "I think"]


def test_the_first_words_are_heard_before_the_clause_is_complete(driver: Driver, voice: Voice) -> None:
    voice.begins = True
    driver.feed(*(text(word, seq=seq) for seq, word in enumerate(["The", " capital", " of"])))
    sent = driver.run()
    assert voice.said == ["The capital (of)"]
    # All but what doesn't fill a chunk yet.
    assert 0 <= length_ms("The capital") - sound_ms(sent) < CHUNK_MS + RESAMPLER_MS
    assert spans(sent)[0][0] == 0
    driver.feed(text(" France is Paris.", seq=3), text("", seq=4, fin=True))
    driver.run()
    assert voice.said[1:] == ["The capital of France is Paris."]
    everything = audio(driver.sent)
    assert 0 <= sound_ms(list(everything)) - length_ms("The capital of France is Paris.") < CHUNK_MS
    made = spans(list(everything))
    assert all(before[1] == after[0] for before, after in pairwise(made))
    assert made[-1] == (31, 31)


def test_a_clause_that_was_begun_sounds_as_one_that_was_not(driver: Driver, voice: Voice) -> None:
    reply = "The capital of France is Paris."
    driver.feed(text(reply, fin=True))
    at_once = np.concatenate([message.samples for message in audio(driver.run())])
    voice.begins = True
    fragments = re.findall(r"\s*\S+", reply)
    driver.feed(*(text(word, 2, seq) for seq, word in enumerate(fragments)), text("", 2, len(fragments), fin=True))
    np.testing.assert_allclose(np.concatenate([message.samples for message in audio(driver.run())]), at_once, atol=1e-6)
    assert len(voice.said) == 3


@pytest.mark.parametrize("verb", ["flush", "drop"])
def test_a_clause_that_was_begun_and_stopped_leaves_nothing_for_the_next(
    driver: Driver, voice: Voice, verb: str
) -> None:
    voice.begins = True
    driver.feed(text("The capital of France"), control(verb, 2 if verb == "flush" else 1))
    driver.run()
    driver.feed(text("It is Rome.", 2, fin=True))
    assert 0 <= sound_ms(driver.run()) - length_ms("It is Rome.") < CHUNK_MS
    assert voice.said[-1] == "It is Rome."


def test_a_voice_that_can_not_begin_says_the_whole_clause(driver: Driver, voice: Voice) -> None:
    driver.feed(*(text(word, seq=seq) for seq, word in enumerate(["The", " capital", " of", " France"])))
    assert driver.run() == []
    driver.feed(text(" is Paris.", seq=4), text("", seq=5, fin=True))
    driver.run()
    assert voice.said == ["The capital of France is Paris."]


def test_it_is_heard_before_the_clause_has_been_made(driver: Driver, voice: Voice) -> None:
    driver.feed(text("It is Paris.", fin=True))
    while not driver.sent:
        driver.step()
    assert voice.pieces <= 2
    driver.run()
    assert voice.pieces == len("It is Paris.")


def test_no_more_is_made_than_may_be_sent(paced: Driver, voice: Voice) -> None:
    paced.feed(text("word " * 20, fin=True))
    paced.run()
    assert voice.pieces * MS_PER_CHARACTER <= 1.2 * AHEAD_MS
    paced.feed(control("drop", 1), played(48_000))
    paced.run()
    assert voice.pieces < 50


@given(
    st.lists(st.integers(1, 3000), max_size=12),
    st.sampled_from([8_000, 16_000, 22_050, 24_000, 44_100]),
    st.text("abc", min_size=1, max_size=40),
)
def test_in_pieces_it_sounds_as_at_once(lengths: list[int], rate_hz: int, words: str) -> None:
    sound = tone(1000 * sum(lengths) / rate_hz, rate_hz=rate_hz)

    class InPieces(FakeVoice):
        def speak(self, text: str, begun: int | None = None) -> Speech:
            return Speech(len(sound), iter(np.split(sound, np.cumsum(lengths)[:-1]) if lengths else []))

    piecewise = InPieces()
    piecewise.rate_hz = rate_hz
    driver = Driver(TtsStage(piecewise, AHEAD_MS), PORTS, wired={"text"})
    driver.feed(text(words, fin=True))
    *messages, last = audio(driver.run())
    made = np.concatenate([np.zeros(0, np.float32), *(message.samples for message in messages)])
    expected = resample(sound, rate_hz, 24_000)
    np.testing.assert_allclose(made[: len(expected)], expected, atol=1e-6)
    assert not made[len(expected) :].any()
    # All of the text belongs to the sound, nothing is left for the end.
    assert (last.text_start, last.text_end) == (len(words) if messages else 0, len(words))


def test_sound_comes_in_messages_of_20_ms_at_24_khz(driver: Driver) -> None:
    driver.feed(text("It is Paris. And more.", fin=True))
    *messages, last = audio(driver.run())
    assert {(len(message.samples), message.sample_rate) for message in messages} == {(CHUNK_SAMPLES, 24_000)}
    assert (len(last.samples), last.fin) == (0, True)
    assert not any(message.fin for message in messages)
    assert [message.seq for message in messages] == list(range(len(messages)))


@given(
    st.lists(st.text(st.sampled_from("ab .,!\n*1é😀"), max_size=30), max_size=12).filter(
        lambda fragments: len("".join(fragments)) < 150
    )
)
def test_the_spans_cover_the_text_in_order(fragments: list[str]) -> None:
    driver = Driver(TtsStage(FakeVoice(), AHEAD_MS), PORTS, wired={"text"})
    driver.feed(*(text(fragment, seq=seq) for seq, fragment in enumerate(fragments)))
    driver.feed(text("", seq=len(fragments), fin=True))
    sent = driver.run()
    edges = [0, *(end for _, end in spans(sent))]
    assert spans(sent) == list(pairwise(edges))
    assert edges == sorted(edges)
    assert edges[-1] == len("".join(fragments))
    assert [message.fin for message in audio(sent)].count(True) == 1


def test_a_span_says_when_its_words_are_spoken(driver: Driver) -> None:
    driver.feed(text("aaaaaaaaaa bbbbbbbbbb.", fin=True))
    sent = spans(driver.run())
    assert sent[len(sent) // 2 - 1][1] == pytest.approx(11, abs=1)


def test_text_that_is_not_spoken_belongs_to_what_comes_next(driver: Driver, voice: Voice) -> None:
    driver.feed(text("It is.\n***\n\nSo it is.\n😀\n", fin=True))
    sent = driver.run()
    assert voice.said == ["It is.", "So it is."]
    assert spans(sent)[-1] == (len("It is.\n***\n\nSo it is."), len("It is.\n***\n\nSo it is.\n😀\n"))


@pytest.mark.parametrize("reply", ["", " \n", "***"])
def test_a_reply_without_words_is_one_empty_message(driver: Driver, reply: str) -> None:
    driver.feed(text(reply, fin=True))
    (message,) = audio(driver.run())
    assert (len(message.samples), message.fin, message.text_start, message.text_end) == (0, True, 0, len(reply))


def test_sound_that_is_too_loud_is_limited() -> None:
    class LoudVoice(FakeVoice):
        def speak(self, text: str, begun: int | None = None) -> Speech:
            speech = super().speak(text)
            return Speech(speech.total_samples, (4 * samples for samples in speech.pieces))

    driver = Driver(TtsStage(LoudVoice(), AHEAD_MS), PORTS, wired={"text"})
    driver.feed(text("Loud.", fin=True))
    assert max(np.abs(message.samples).max(initial=0) for message in audio(driver.run())) == 1


def test_it_is_only_so_far_ahead_of_what_is_heard(paced: Driver) -> None:
    paced.feed(text("word " * 20, fin=True))
    assert sound_ms(paced.run()) == AHEAD_MS
    paced.feed(played(2400))
    assert sound_ms(paced.run()) == 100
    paced.feed(played(4800, segment_id=7))
    assert paced.run() == []
    heard_ms = 100
    while not any(message.fin for message in audio(paced.sent)):
        heard_ms += 100
        paced.feed(played(heard_ms * 24))
        paced.run()
        assert sound_ms(paced.sent) <= heard_ms + AHEAD_MS
    assert sound_ms(paced.sent) == pytest.approx(99 * MS_PER_CHARACTER * 24_000 / Voice.rate_hz, abs=CHUNK_MS)


def test_a_speaker_that_has_ended_the_reply_is_not_waited_for(paced: Driver) -> None:
    paced.feed(text("word " * 20, fin=True))
    paced.run()
    paced.feed(played(0, fin=True))
    assert audio(paced.run())[-1].fin


def test_without_a_speaker_that_reports_it_does_not_wait(driver: Driver) -> None:
    driver.feed(text("word " * 20, fin=True))
    assert audio(driver.run())[-1].fin


def test_one_session_waits_alone(paced: Driver) -> None:
    paced.feed(text("word " * 40, fin=True), text("word " * 20, session_id="b", fin=True))
    sent = audio(paced.run())
    assert {session: sum(len(m.samples) for m in sent if m.session_id == session) for session in "ab"} == {
        "a": AHEAD_MS * 24,
        "b": AHEAD_MS * 24,
    }


@pytest.mark.parametrize(("verb", "named"), [("flush", 2), ("drop", 1)])
def test_an_interrupted_reply_stops_at_once_and_the_next_is_spoken(
    paced: Driver, voice: Voice, verb: str, named: int
) -> None:
    paced.feed(text("word " * 20), text("more words. " * 20, seq=1, fin=True))
    paced.run()
    paced.feed(control(verb, named), played(48_000), text("New.", segment_id=2, fin=True))
    sent = audio(paced.run())
    assert {message.segment_id for message in sent} == {2}
    assert spans([*sent])[-1] == (4, 4)
    assert "more words." not in voice.said


def test_a_clause_that_cannot_be_spoken_ends_that_reply_only(driver: Driver) -> None:
    driver.feed(text("explode.", fin=True), text("Fine.", segment_id=2, fin=True))
    failed, *served = audio(driver.run())
    assert (failed.segment_id, failed.fin) == (1, True)
    assert "no phonemes" in (failed.error or "")
    assert (served[-1].segment_id, served[-1].fin, served[-1].error) == (2, True, None)


def test_an_ended_session_starts_afresh(driver: Driver) -> None:
    driver.feed(text("It is Paris. And"))
    driver.run()
    driver.feed(control("end", 1))
    driver.run()
    driver.feed(text("New.", fin=True))
    assert spans(driver.run())[-1] == (4, 4)


def test_replies_that_never_end_are_bounded(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    driver.feed(*(text("word", segment_id) for segment_id in range(1, MOST_REPLIES + 2)))
    driver.run()
    assert "forgot the reply of session=a segment=1" in caplog.text


def test_the_last_message_of_the_session_is_passed_on(driver: Driver) -> None:
    driver.feed(text("Bye.", fin=True), text("", segment_id=1, seq=1, finish=True))
    *_, fin, finish = audio(driver.run())
    assert (fin.fin, finish.finish) == (True, True)


def test_speculation_is_inherited(driver: Driver) -> None:
    driver.feed(text("Maybe.", fin=True, speculative=True))
    assert all(message.speculative for message in driver.run())


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"BACKEND": "fake", "VOICE": "x"}, "VOICE has no effect with BACKEND=fake"),
        ({"BACKEND": "fake", "SPEED": "1.1"}, "SPEED has no effect"),
        ({"BACKEND": "fake", "THREADS": "1"}, "THREADS has no effect"),
        ({"SPEED": "3"}, "SPEED='3'"),
        ({"AHEAD_MS": "10"}, "AHEAD_MS='10'"),
        ({"BACKEND": "kokoro"}, "BACKEND='kokoro'"),
    ],
)
def test_a_setting_that_can_not_be_used_is_refused_by_name(env: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        from_env(Config, env)


def test_the_fake_speaks_longer_when_there_is_more_to_say() -> None:
    driver = Driver(build(from_env(Config, {"BACKEND": "fake"})), PORTS, wired={"text"})
    driver.feed(text("Ten chars.", fin=True), text("Twenty characters...", segment_id=2, fin=True))
    sent = audio(driver.run())
    assert [sum(len(m.samples) for m in sent if m.segment_id == n) for n in (1, 2)] == [600 * 24, 1200 * 24]


def test_a_speaker_that_is_gone_is_not_waited_for_until_it_reports_again(paced: Driver) -> None:
    paced.feed(text("A long sentence that takes much longer than what may be sent ahead of the speaker.", fin=True))
    assert not audio(paced.run())[-1].fin
    paced.intake.restarted(["played"], "speaker")
    assert audio(paced.run())[-1].fin
    paced.feed(played(100, segment_id=2), text("Another long sentence that takes much longer than that.", 2, fin=True))
    assert not audio(paced.run())[-1].fin


def test_a_speaker_that_falls_silent_is_not_waited_for_for_ever(
    paced: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """Some of what was sent may have been lost: then it can never report that as played."""
    paced.feed(text("word " * 40, fin=True))
    paced.run()
    paced.advance(9_000)
    paced.feed(played(2400))
    paced.advance(9_000)
    assert not audio(paced.sent)[-1].fin
    paced.advance(2_000)
    assert audio(paced.sent)[-1].fin
    assert caplog.messages == ["session=a segment=1: the speaker is silent: goes on without it"]
    paced.feed(text("word " * 40, 2, fin=True))
    assert not audio(paced.run())[-1].fin
