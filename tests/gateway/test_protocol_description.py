"""protocol.json describes the messages as the code has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from gateway.serving import ROOT
from jsonschema import Draft202012Validator

from dora_voice_gateway.describe import protocol

FILE = ROOT / "nodes/gateway/protocol.json"
README = (ROOT / "nodes/gateway/README.md").read_text()


def references(described: Any) -> Iterator[str]:
    if isinstance(described, dict):
        yield from ([described["$ref"]] if "$ref" in described else [])
        described = list(described.values())
    for part in described if isinstance(described, list) else ():
        yield from references(part)


def found(reference: str) -> Any:
    part = protocol()
    for step in reference.removeprefix("#/").split("/"):
        part = part[step]
    return part


def test_the_file_is_what_the_code_says() -> None:
    told = "run `dora-voice-protocol > nodes/gateway/protocol.json`"
    assert json.loads(FILE.read_text()) == json.loads(json.dumps(protocol())), told


def test_every_reference_leads_somewhere() -> None:
    assert all(found(reference) for reference in references(protocol()))


@pytest.mark.parametrize("channel", ["chat", "stream", "voice"])
def test_every_message_has_a_type_and_stands_in_the_readme(channel: str) -> None:
    messages = {key: each for key, each in protocol()["components"]["messages"].items() if key.startswith(channel)}
    assert messages
    (row,) = [line for line in README.splitlines() if line.startswith(f"| `/ws/{channel}`")]
    for message in messages.values():
        kind = message["payload"]["properties"]["type"]
        for name in kind.get("enum", [kind.get("const")]):
            assert f"`{name}`" in row, f"{name} is missing from the table"


@pytest.mark.parametrize("name", sorted(protocol()["components"]["messages"]))
def test_every_field_of_every_message_says_what_it_is(name: str) -> None:
    payload = protocol()["components"]["messages"][name]["payload"]
    Draft202012Validator.check_schema(payload)
    assert all("description" in field or "$ref" in field for field in payload["properties"].values())
    assert payload["additionalProperties"] is False
