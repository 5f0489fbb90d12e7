"""The documents of a conversation: what each field may be, what it is by default, and that it is explained."""

from __future__ import annotations

import inspect

import pytest
from pydantic import ValidationError

from dora_voice_session import requests, schema
from dora_voice_session.schema import (
    ChatMessage,
    Document,
    Generation,
    ImageOptions,
    MediaPart,
    PrefillResult,
    RollbackResult,
    SessionSettings,
    StreamingChunk,
    StreamingConfig,
    StreamingRequest,
    StreamingResponse,
    TextPart,
    Usage,
)


def documents_of(module):
    members = [each for _, each in inspect.getmembers(module, inspect.isclass)]
    return [each for each in members if issubclass(each, Document) and each.__module__ == module.__name__]


DOCUMENTS = documents_of(schema)
MESSAGE = {"role": "user", "content": "Hi."}
LEAST = {
    TextPart: {"type": "text", "text": "a"},
    MediaPart: {"type": "image", "data": "aGk="},
    ChatMessage: MESSAGE,
    StreamingRequest: {"session_id": "s", "messages": [MESSAGE]},
    PrefillResult: {"session_id": "s", "usage": {}},
    StreamingChunk: {"chunk_index": 0},
    StreamingResponse: {"session_id": "s"},
    RollbackResult: {"success": True},
}
"""What can't be left out."""


def refused(document, fields):
    """The paths of the fields that are refused."""
    with pytest.raises(ValidationError) as error:
        document.model_validate({**LEAST.get(document, {}), **fields})
    return {".".join(map(str, each["loc"])) for each in error.value.errors()}


@pytest.mark.parametrize("document", DOCUMENTS + documents_of(requests))
def test_every_field_is_described(document):
    assert [name for name, field in document.model_fields.items() if not field.description] == []


@pytest.mark.parametrize("document", DOCUMENTS + documents_of(requests))
def test_a_description_says_the_unit(document):
    units = {"_ms": "ms", "_rate": "Hz", "_size": "ms", "_tokens": "token", "_data": "base64"}
    for name, field in document.model_fields.items():
        for suffix, unit in units.items():
            if name.endswith(suffix):
                assert unit in field.description, name


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if each is not Document])
def test_an_unknown_field_is_refused_by_name(document):
    assert refused(document, {"temprature": 1}) == {"temprature"}


@pytest.mark.parametrize(("document", "fields"), LEAST.items())
def test_what_cannot_be_left_out_is_named(document, fields):
    with pytest.raises(ValidationError) as error:
        document.model_validate({})
    assert {each["loc"][0] for each in error.value.errors()} == set(fields)


@pytest.mark.parametrize("document", [Generation, StreamingConfig, SessionSettings, Usage, ImageOptions])
def test_everything_else_has_a_default(document):
    assert document() == document.model_validate_json("{}")


def test_the_defaults():
    assert Generation().model_dump() == {
        "max_new_tokens": 256,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "repetition_penalty": 1.0,
        "length_penalty": 1.0,
        "stop": [],
        "seed": None,
    }
    request = StreamingRequest.model_validate(LEAST[StreamingRequest])
    assert request.model_dump(exclude={"session_id", "messages", "generation"}) == {
        "is_last_chunk": False,
        "streaming": {
            "generate_audio": True,
            "audio_token_chunk_size": 25,
            "ref_audio_path": None,
            "ref_audio_data": None,
            "enable_speculative_snapshot": False,
            "tts_sampling": None,
        },
        "omni_mode": False,
        "use_tts_template": False,
        "enable_thinking": False,
        "image": {"max_slice_nums": 9},
    }
    assert request.generation == Generation()
    assert set(SessionSettings().model_dump().values()) == {None}
    assert StreamingChunk(chunk_index=0).audio_sample_rate == 24_000
    assert StreamingResponse(session_id="s").success


RULES = [
    (Generation, "max_new_tokens", [1, 10**6], [0, -1, 1.5, "9", None, True]),
    (Generation, "temperature", [0, 0.7, 10], [-0.1, 10.1, "1", float("nan"), float("inf")]),
    (Generation, "top_p", [0.01, 1], [0, 1.1, float("nan")]),
    (Generation, "top_k", [0, 50], [-1, 0.5]),
    (Generation, "repetition_penalty", [0.5, 10], [0, -1, 11, float("inf")]),
    (Generation, "length_penalty", [0.5, 10], [0, -1, 11, float("inf")]),
    (Generation, "stop", [[], ["a"], ["a" * 1000] * 16], [[""], ["a"] * 17, ["a" * 1001], "a", [1], None]),
    (Generation, "seed", [None, 0, 2**63 - 1], [-1, 2**63, 1.5]),
    (StreamingConfig, "generate_audio", [True, False], ["true", 1, None]),
    (StreamingConfig, "audio_token_chunk_size", [1, 25], [0, -1, 2.5]),
    (StreamingConfig, "ref_audio_path", [None, "voice.wav"], [1]),
    (StreamingConfig, "ref_audio_data", [None, "", "aGk="], ["aGk", "!!!!", "aGk=é", "a b="]),
    (StreamingConfig, "enable_speculative_snapshot", [True, False], ["no", 0]),
    (StreamingConfig, "tts_sampling", [None, {}, {"speed": 1.5}], [{"speed": "fast"}, [1], {"a": float("nan")}]),
    (ImageOptions, "max_slice_nums", [1, 9], [0, -1, 1.5]),
    (TextPart, "type", ["text"], ["image", None]),
    (TextPart, "text", ["", "a"], [None, 1]),
    (MediaPart, "type", ["image", "audio", "video"], ["text", "smell"]),
    (MediaPart, "data", ["aGk="], ["%", None]),
    (MediaPart, "max_slice_nums", [None, 1, 9], [0, 1.5]),
    (MediaPart, "format", [None, "f32le", "s16le"], ["file", "mp3", 1]),
    (MediaPart, "sample_rate", [None, 8_000, 192_000], [7_999, 192_001, 16_000.5, "16000"]),
    (ChatMessage, "role", ["system", "user", "assistant"], ["tool", "", None]),
    (ChatMessage, "content", ["", "a", [], [LEAST[TextPart], LEAST[MediaPart]]], [None, [{"type": "smell"}], [1]]),
    (StreamingRequest, "session_id", ["s", "x" * 256], ["", "x" * 257, 1, None]),
    (StreamingRequest, "messages", [[MESSAGE]], [[], None, [{"role": "user"}]]),
    (StreamingRequest, "is_last_chunk", [True, False], ["true", 1]),
    (StreamingRequest, "generation", [{}, {"top_k": 3}], [None, {"top_k": -1}, {"beams": 1}]),
    (StreamingRequest, "streaming", [{}, {"generate_audio": False}], [None, {"audio": 1}]),
    (StreamingRequest, "omni_mode", [True, False], [0]),
    (StreamingRequest, "use_tts_template", [True, False], [0]),
    (StreamingRequest, "enable_thinking", [True, False], [0]),
    (StreamingRequest, "image", [{}, {"max_slice_nums": 2}], [None, {"slices": 2}]),
    (SessionSettings, "system_prompt", [None, "", "Be brief."], [1]),
    (SessionSettings, "language", [None, "de"], ["", "x" * 65, 1]),
    (SessionSettings, "voice", [None, "anna"], ["", 1]),
    (SessionSettings, "generation", [None, {}], [{"beams": 1}]),
    (StreamingChunk, "chunk_index", [0, 7], [-1, 0.5]),
    (StreamingChunk, "text_delta", ["", "a"], [None]),
    (StreamingChunk, "audio_data", [None, "aGk="], ["a"]),
    (StreamingChunk, "audio_sample_rate", [16000], [0, -1, 1.5]),
    (StreamingChunk, "is_final", [True], [1]),
    (StreamingChunk, "duration_ms", [0, 1.5], [-1, float("nan")]),
    (StreamingResponse, "session_id", ["s"], ["", "x" * 257]),
    (StreamingResponse, "full_text", [""], [None]),
    (StreamingResponse, "audio_path", [None, "a.wav"], [1]),
    (StreamingResponse, "audio_data", [None, "aGk="], ["a"]),
    (StreamingResponse, "audio_sample_rate", [24000], [0]),
    (StreamingResponse, "audio_duration_ms", [0, 40], [-1]),
    (StreamingResponse, "total_chunks", [0, 2], [-1]),
    (StreamingResponse, "total_duration_ms", [0, 2.5], [-1]),
    (StreamingResponse, "success", [True, False], [None]),
    (StreamingResponse, "error", [None, "no_memory: 3 MB"], [1]),
    (StreamingResponse, "finish_reason", [None, "end", "stop", "length", "stopped"], ["tired"]),
    (StreamingResponse, "usage", [{}, {"input_tokens": 3}], [None, {"tokens": 3}]),
    (PrefillResult, "session_id", ["s"], [""]),
    (PrefillResult, "usage", [{}], [None]),
    (RollbackResult, "success", [True, False], [None, 1]),
    (RollbackResult, "reason", [None, "why"], [1]),
    (RollbackResult, "restored_position", [None, 0, 12], [-1, 1.5]),
    *((Usage, name, [0, 12], [-1, 0.5, None]) for name in Usage.model_fields),
]
"""Of each field: what it may be, and what it may not."""


@pytest.mark.parametrize(("document", "name", "good", "bad"), RULES)
def test_what_a_field_may_be(document, name, good, bad):
    for value in good:
        document.model_validate({**LEAST.get(document, {}), name: value})
    for value in bad:
        assert {path.split(".")[0] for path in refused(document, {name: value})} == {name}, value


def test_every_field_has_its_rules_tested():
    fields = {(each, name) for each in DOCUMENTS for name in each.model_fields}
    assert fields == {(document, name) for document, name, *_ in RULES}


def test_a_refusal_names_the_path_to_the_field():
    messages = [MESSAGE, {"role": "user", "content": [{"type": "image", "data": "%"}]}]
    paths = refused(StreamingRequest, {"messages": messages, "generation": {"top_p": 2}})
    assert "generation.top_p" in paths
    assert any(path.startswith("messages.1.content.") and path.endswith(".0.image.data") for path in paths)


def test_the_text_of_a_message_is_that_of_its_parts():
    parts = [TextPart(type="text", text="你好"), MediaPart(type="image", data=""), TextPart(type="text", text="!")]
    assert ChatMessage(role="user", content=parts).text == "你好!"
    assert ChatMessage(role="user", content=[]).text == ""
    assert ChatMessage(role="user", content="a").text == "a"


def test_a_document_survives_its_json():
    request = StreamingRequest.model_validate(
        {
            **LEAST[StreamingRequest],
            "generation": {"temperature": 1, "stop": ["a"]},
            "streaming": {"ref_audio_data": ""},
        }
    )
    assert StreamingRequest.model_validate_json(request.model_dump_json()) == request


def test_a_document_does_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        Generation().top_k = 3
