"""A field that was set and can't be honoured is refused by name; one that asks for nothing is not."""

from __future__ import annotations

import pytest
from session.fake_model import FakeModel
from session.tiny_vision_model import picture

from dora_voice_session import picture_file
from dora_voice_session.capabilities import OPTIONAL, Capabilities
from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import SessionSettings, StreamingConfig, StreamingRequest

TEXT = Capabilities("tiny-llm")
ALL = Capabilities("omni", honoured=OPTIONAL, parts=frozenset({"text", "image", "audio", "video"}))
PICTURE = {"type": "image", "data": picture()}

ASKED = [
    ("streaming.generate_audio", True),
    ("streaming.audio_token_chunk_size", 10),
    ("streaming.ref_audio_path", "voice.wav"),
    ("streaming.ref_audio_data", "aGk="),
    ("streaming.tts_sampling", {"speed": 1.0}),
    ("omni_mode", True),
    ("use_tts_template", True),
    ("enable_thinking", True),
    ("image", {"max_slice_nums": 3}),
]


def request(path=None, value=None, content="Hi."):
    document = {"session_id": "s", "messages": [{"role": "user", "content": content}]}
    if path:
        *outer, name = path.split(".")
        document |= {outer[0]: {name: value}} if outer else {name: value}
    return StreamingRequest.model_validate(document)


def refusal(capabilities, document):
    with pytest.raises(RefusedError) as refused:
        capabilities.check(document)
    return refused.value


@pytest.mark.parametrize(("path", "value"), ASKED)
def test_what_a_text_model_cannot_do_is_refused_with_path_value_and_name(path, value):
    refused = refusal(TEXT, request(path, value))
    assert refused.code == "unsupported_field"
    assert str(refused).startswith(f"{path}=")
    assert str(refused).endswith("tiny-llm can't do that")


@pytest.mark.parametrize(("path", "value"), ASKED)
def test_what_the_model_honours_is_not_refused(path, value):
    Capabilities("able", honoured=frozenset({path.split(".")[-1]})).check(request(path, value))
    refusal(Capabilities("able to do the rest", honoured=OPTIONAL - {path.split(".")[-1]}), request(path, value))


def test_every_optional_field_has_its_refusal():
    assert {path.split(".")[-1] for path, _ in ASKED} | {"voice"} == OPTIONAL


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("streaming.generate_audio", False),
        ("streaming.audio_token_chunk_size", 25),
        ("streaming.ref_audio_path", None),
        ("streaming.ref_audio_data", None),
        ("streaming.tts_sampling", None),
        ("streaming.enable_speculative_snapshot", True),
        ("omni_mode", False),
        ("use_tts_template", False),
        ("enable_thinking", False),
        ("image", {}),
        ("generation", {"temperature": 0.7, "stop": ["a"], "seed": 3}),
        ("streaming", {}),
        (None, None),
    ],
)
def test_what_asks_for_nothing_that_a_text_model_lacks_is_served(path, value):
    TEXT.check(request(path, value))


def test_a_voice_needs_a_backend_that_speaks_and_a_language_does_not():
    refused = refusal(TEXT, SessionSettings(voice="anna"))
    assert "voice='anna'" in str(refused)
    TEXT.check(SessionSettings(language="de", system_prompt="Be brief."))
    TEXT.check(SessionSettings(voice=None))
    ALL.check(SessionSettings(voice="anna"))


def test_the_delivery_alone_is_checked_too():
    assert str(refusal(TEXT, StreamingConfig(ref_audio_path="a.wav"))).startswith("ref_audio_path='a.wav'")
    TEXT.check(StreamingConfig())


def test_a_long_value_is_abbreviated():
    assert len(str(refusal(TEXT, request("streaming.ref_audio_data", "aGkh" * 1000)))) < 200


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
def test_content_of_another_kind_is_refused_with_its_place(kind):
    content = [{"type": "text", "text": "look"}, {**PICTURE, "type": kind}]
    refused = refusal(TEXT, request(content=content))
    assert refused.code == "unsupported_part"
    assert str(refused) == f"messages[0].content[1]: tiny-llm takes text, not {kind}"
    ALL.check(request(content=content))


def test_content_in_parts_of_text_is_served():
    TEXT.check(request(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]))


# Pictures

SEEING = Capabilities("tiny-vlm", honoured=frozenset({"image"}), parts=frozenset({"text", "image"}))


def test_a_model_says_itself_what_it_takes():
    model = FakeModel()
    assert Capabilities.of(model, "tiny", {"generate_audio"}) == Capabilities(
        "tiny", frozenset({"enable_thinking", "generate_audio"})
    )
    model.takes_pictures = True
    assert Capabilities.of(model, "tiny") == Capabilities(
        "tiny", frozenset({"enable_thinking"}), frozenset({"text", "image"})
    )
    model.limits_slices = True
    assert Capabilities.of(model, "tiny").honoured == {"enable_thinking", "image"}


@pytest.mark.parametrize("kind", ["audio", "video"])
def test_sound_and_films_are_refused_by_a_model_that_takes_pictures(kind):
    refused = refusal(SEEING, request(content=[PICTURE, {**PICTURE, "type": kind}]))
    assert refused.code == "unsupported_part"
    assert str(refused) == f"messages[0].content[1]: tiny-vlm takes image, text, not {kind}"


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_only_the_user_shows_pictures(role):
    document = {"session_id": "s", "messages": [{"role": role, "content": [PICTURE]}]}
    refused = refusal(SEEING, StreamingRequest.model_validate(document))
    assert (refused.code, str(refused)) == (
        "unsupported_part",
        f"messages[0].content[0]: role={role}: expected image only from the user",
    )


def test_pieces_that_cannot_be_limited_are_refused_by_name():
    sees = Capabilities("llava", parts=SEEING.parts)
    SEEING.check(request("image", {"max_slice_nums": 3}, [{**PICTURE, "max_slice_nums": 1}]))
    sees.check(request("image", {"max_slice_nums": 9}, [{**PICTURE, "max_slice_nums": 9}]))
    for_all = refusal(sees, request("image", {"max_slice_nums": 3}, [PICTURE]))
    assert str(for_all) == "image=ImageOptions(max_slice_nums=3): llava can't do that"
    for_one = refusal(sees, request(content=[{**PICTURE, "max_slice_nums": 1}]))
    assert for_all.code == for_one.code == "unsupported_field"
    assert str(for_one) == "messages[0].content[0].max_slice_nums=1: llava can't do that"


def test_a_picture_that_is_none_is_refused_with_its_place(monkeypatch):
    refused = refusal(SEEING, request(content=[PICTURE, {"type": "image", "data": "aGk="}]))
    assert refused.code == "bad_request"
    assert str(refused).startswith("messages[0].content[1]: no picture: expected")
    monkeypatch.setattr(picture_file, "MOST_PICTURES", 2)
    refused = refusal(SEEING, request(content=[PICTURE] * 3))
    assert (refused.code, str(refused)) == ("bad_request", "messages: 3 pictures, expected at most 2")


def test_pixels_of_all_pictures_of_a_request_count(monkeypatch):
    monkeypatch.setattr(picture_file, "LARGEST_PIXELS_TOGETHER", 2 * 96 * 64)
    SEEING.check(request(content=[PICTURE] * 2))
    refused = refusal(SEEING, request(content=[PICTURE] * 3))
    assert str(refused).startswith("messages[0].content[2]: 18432 pixels up to here")
