"""The documents of the request and result ports: which there are, and what is said of those that are none."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dora_voice_session.refused import RefusedError
from dora_voice_session.requests import (
    RESULT,
    Complete,
    Describe,
    Done,
    Edit,
    End,
    Failed,
    Generate,
    Prefill,
    Recall,
    Request,
    Reset,
    Rollback,
    Settings,
    Stop,
    parse,
    request_id_of,
)

SAID = {"session_id": "s", "messages": [{"role": "user", "content": "Hi."}]}
REQUESTS = {
    Settings: {"type": "session", "session_id": "s", "settings": {"language": "de"}},
    Prefill: {"type": "prefill", "request": SAID},
    Edit: {"type": "edit", "request": SAID},
    Generate: {"type": "generate", "session_id": "s"},
    Complete: {"type": "complete", "request": SAID},
    Stop: {"type": "stop", "session_id": "s"},
    Rollback: {"type": "rollback", "session_id": "s"},
    Reset: {"type": "reset", "session_id": "s"},
    End: {"type": "end", "session_id": "s"},
    Recall: {"type": "history", "session_id": "s"},
    Describe: {"type": "model", "session_id": "s"},
}


def why_not(document: object) -> str:
    with pytest.raises(RefusedError) as refused:
        parse(document if isinstance(document, str) else json.dumps(document))
    assert refused.value.code == "bad_request"
    return str(refused.value)


@pytest.mark.parametrize(("kind", "document"), REQUESTS.items())
def test_a_document_is_read_as_its_request(kind, document):
    request = parse(json.dumps({**document, "request_id": "q1"}))
    assert type(request) is kind
    assert (request.session_id, request.request_id, request.type) == ("s", "q1", document["type"])
    assert parse(json.dumps(document)).request_id is None


def test_every_request_is_tested():
    union, _ = get_args(Request)
    assert set(get_args(union)) == set(REQUESTS)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("{", "document: Invalid JSON"),
        ([1], "document: "),
        ({"type": "sing"}, "document: Input tag 'sing'"),
        ({"type": "generate"}, "generate.session_id: Field required"),
        ({**REQUESTS[Stop], "loud": True}, "stop.loud: Extra inputs are not permitted, found True"),
        ({**REQUESTS[Generate], "generation": {"top_p": 7.5}}, "equal to 1, found 7.5"),
        ({**REQUESTS[Stop], "session_id": ""}, "stop.session_id: String should have at least 1 character, found ''"),
        ({**REQUESTS[Stop], "request_id": 5}, "stop.request_id: Input should be a valid string, found 5"),
    ],
)
def test_a_refusal_says_where_what_was_expected_and_what_was_found(document, says):
    assert says in why_not(document)


def test_a_field_that_is_missing_has_no_value():
    assert why_not({"type": "generate"}) == "generate.session_id: Field required"


@pytest.mark.parametrize("document", ["[" * 100_000, {**REQUESTS[Stop], "session_id": "x" * 10_000}, "x" * 10_000])
def test_a_long_value_is_shortened(document):
    assert len(why_not(document)) < 250


@pytest.mark.parametrize(
    ("document", "request_id"),
    [
        ({**REQUESTS[Stop], "request_id": "q"}, "q"),
        ({"type": "sing", "request_id": "q"}, "q"),
        ({"request_id": "x" * 256, "session_id": [1]}, "x" * 256),
        ({"request_id": "x" * 257}, None),
        ({"request_id": 5}, None),
        ({"request_id": None}, None),
        ({}, None),
        ([{"request_id": "q"}], None),
        ('{"request_id": "q"', None),
        ('{"request_id": "\\ud800"}', None),
        ("[" * 100_000, None),
    ],
)
def test_the_id_of_what_is_no_request_is_found_if_there_is_one(document, request_id):
    assert request_id_of(document if isinstance(document, str) else json.dumps(document)) == request_id


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner)).map(json.dumps))
def test_whatever_comes_is_refused_or_read(document):
    assert why_not(document)
    assert request_id_of(document) is None


def test_a_result_keeps_its_type_in_its_json():
    for result in (Done(session_id="s"), Failed(session_id="s", request_id="q", code="busy", error="later")):
        assert RESULT.validate_json(result.model_dump_json()) == result
    with pytest.raises(ValidationError, match="code"):
        Failed(session_id="s", code="tired", error="")  # type: ignore[arg-type]
