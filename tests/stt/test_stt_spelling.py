import pytest

from dora_voice_stt.spelling import as_sentence


@pytest.mark.parametrize(
    ("heard", "sentence"),
    [
        ("who wrote Romeo and Juliet.", "Who wrote Romeo and Juliet?"),
        ("How many days are there in a week.", "How many days are there in a week?"),
        ("What's your name.", "What's your name?"),
        ("what a nice day.", "What a nice day."),
        ("When I was young it rained.", "When I was young it rained."),
        ("Who is it. It is me.", "Who is it. It is me."),
        ("Is it?", "Is it?"),
        ("", ""),
    ],
)
def test_a_question_is_written_as_one_and_a_statement_is_not(heard, sentence):
    assert as_sentence(heard, "en") == sentence


def test_in_other_languages_only_the_capital_is_mended():
    assert as_sentence("wer ist es.", "de") == "Wer ist es."
    assert as_sentence("谁。", "zh") == "谁。"
