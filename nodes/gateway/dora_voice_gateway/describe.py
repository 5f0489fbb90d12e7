"""The three protocols as one AsyncAPI 3 document, made from the messages' own classes.

dora-voice-protocol > protocol.json
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter

from dora_voice_gateway import chat_protocol, stream_protocol, voice_protocol

CHANNELS = {
    "chat": (chat_protocol, "Whole conversations, one after the other. Each request ends in one done or error."),
    "stream": (stream_protocol, "One conversation that goes on, request by request."),
    "voice": (voice_protocol, voice_protocol.__doc__ or ""),
}
COMPONENTS = "#/components"


@cache
def protocol() -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for name, (module, summary) in CHANNELS.items():
        sides = {"client": _kinds(module.CLIENT), "server": get_args(module.Server)}
        channels[name] = {"address": f"/ws/{name}", "description": summary.strip(), "messages": {}}
        for side, kinds in sides.items():
            for kind in kinds:
                key = f"{name}-{side}-{kind.__name__}"
                schema = TypeAdapter(kind).json_schema(ref_template=f"{COMPONENTS}/schemas/{{model}}")
                schemas.update(schema.pop("$defs", {}))
                messages[key] = {"name": kind.__name__, "contentType": "application/json", "payload": schema}
                channels[name]["messages"][key] = {"$ref": f"{COMPONENTS}/messages/{key}"}
            operations[f"{name}-{side}"] = {
                "action": "receive" if side == "client" else "send",
                "channel": {"$ref": f"#/channels/{name}"},
                "messages": [{"$ref": f"#/channels/{name}/messages/{name}-{side}-{k.__name__}"} for k in kinds],
            }
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "dora-voice gateway", "version": "1", "license": {"name": "Apache-2.0"}},
        "channels": channels,
        "operations": operations,
        "components": {"schemas": schemas, "messages": messages},
    }


def _kinds(adapter: Any) -> list[type[BaseModel]]:
    """The classes of a union; it and they may be annotated."""
    return [_bare(kind) for kind in get_args(_bare(adapter._type))]


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if hasattr(kind, "__metadata__") else kind


def main() -> None:
    """Console script `dora-voice-protocol`."""
    print(json.dumps(protocol(), indent=2))
