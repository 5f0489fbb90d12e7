"""What words over a reply mean, and how long a silence may be."""

from __future__ import annotations

import pytest

from dora_voice_vad.meaning import backchannels, is_backchannel, is_echo
from dora_voice_vad.patience import FixedSilence, SentenceAware, is_finished


@pytest.mark.parametrize(
    "text", ["Mm-hmm.", "mm hmm, mm-hmm", "Uh-huh.", "Yeah, okay.", "I see.", "", "...", "Right! Right."]
)
def test_listeners_hum(text: str) -> None:
    assert is_backchannel(text, backchannels("en"))


@pytest.mark.parametrize("text", ["Yes.", "No!", "Stop.", "I see a dog.", "Okay, but why?", "Hello."])
def test_words_are_meant(text: str) -> None:
    assert not is_backchannel(text, backchannels("en-US"))


def test_every_language_has_its_own_hums_and_unknown_ones_have_the_english() -> None:
    assert is_backchannel("嗯，好的。", backchannels("zh"))
    assert not is_backchannel("不要", backchannels("zh"))
    assert is_backchannel("Ach so!", backchannels("de-AT"))
    assert not is_backchannel("Ach so!", backchannels("en"))
    assert backchannels("xx") == backchannels(None) == backchannels("en")


@pytest.mark.parametrize("text", ["a robot by the", "By the sea!"])
@pytest.mark.parametrize("is_final", [False, True])
def test_an_echo_repeats_a_piece_of_what_was_said(text: str, is_final: bool) -> None:
    assert is_echo(text, "Once there was a robot, by the sea.", is_final=is_final)


def test_a_single_word_of_it_is_an_echo_only_while_more_may_come() -> None:
    assert is_echo("ROBOT", "Once there was a robot, by the sea.", is_final=False)
    assert not is_echo("ROBOT", "Once there was a robot, by the sea.", is_final=True)


@pytest.mark.parametrize("text", ["a robot by the lake", "rob", "", "sea the"])
@pytest.mark.parametrize("is_final", [False, True])
def test_what_says_anything_else_is_no_echo(text: str, is_final: bool) -> None:
    assert not is_echo(text, "Once there was a robot, by the sea.", is_final=is_final)


@pytest.mark.parametrize(
    "text",
    [
        *("What is the capital of France?", "Stop!", "My name is Ann.", "这是什么？", "He said “no.”"),
        *("Where are you from?", "What is it made of?", "Mach das Licht an.", "Hör auf!", "Mach die Tür zu."),
    ],
)
def test_a_whole_sentence_is_finished(text: str) -> None:
    assert is_finished(text)


@pytest.mark.parametrize(
    "text", ["What is the", "I would like to.", "Well...", "Red, green and.", "And the?", "Moment,", "Ich möchte zum."]
)
def test_half_a_sentence_is_not(text: str) -> None:
    assert not is_finished(text)


def test_patience_depends_on_what_is_known() -> None:
    patience = SentenceAware(finished_ms=300, unknown_ms=700, unfinished_ms=1200)
    waits_ms = [patience.silence_ms(text, None) for text in ("All right.", None, "", "And then the")]
    assert waits_ms == [300, 700, 700, 1200]
    assert FixedSilence(500).silence_ms("And then the", None) == 500


@pytest.mark.parametrize("text", ["All right.", None, "And then the"])
def test_what_surely_goes_on_by_its_sound_is_waited_for_whatever_it_says(text: str | None) -> None:
    patience = SentenceAware(finished_ms=300, unknown_ms=700, unfinished_ms=1200)
    assert patience.silence_ms(text, 0.05) == 1200


@pytest.mark.parametrize("sounds_finished", [None, 0.3, 0.99])
def test_else_the_words_decide(sounds_finished: float | None) -> None:
    patience = SentenceAware(finished_ms=300, unknown_ms=700, unfinished_ms=1200)
    waits_ms = [patience.silence_ms(text, sounds_finished) for text in ("All right.", None, "And then the")]
    assert waits_ms == [300, 700, 1200]
