"""dora-voice-gateway: the conversation over HTTP and WebSocket, for many clients at once."""

from __future__ import annotations

import logging
import socket
from typing import Any

from dora_voice.config import SetupError
from dora_voice.messages import SPEAKER_RATE_HZ, Audio, Control, Played, Text
from dora_voice.runtime import serve
from dora_voice.stage import Ports
from dora_voice_gateway.bridge import Bridge
from dora_voice_gateway.config import Config
from dora_voice_gateway.gateway import Gateway
from dora_voice_gateway.server import Server, app
from dora_voice_gateway.stage import GatewayStage

log = logging.getLogger("dora_voice.gateway")

INPUTS = {
    "user_text": Text,
    "hypothesis": Text,
    "recorded": Text,
    "reply_text": Text,
    "result": Text,
    "reply_audio": Audio,
    "control": Control,
    "endpoint": Control,
}
PORTS = Ports(
    inputs=INPUTS,
    outputs={
        "audio": Audio,
        "endpoint_audio": Audio,
        "recording": Audio,
        "request": Text,
        "client_control": Control,
        "played": Played,
    },
    # It ends when it is stopped, whatever the others do.
    feedback=frozenset(INPUTS),
    remembered=frozenset({"user_text"}),
    rate_hz=SPEAKER_RATE_HZ,
)


def build(config: Config) -> GatewayStage:
    bridge = Bridge()
    gateway = Gateway(config, bridge)
    listener = listen(config)
    log.info("listens on http://%s:%d", *listener.getsockname()[:2])
    return GatewayStage(bridge, Server(app(gateway), listener, gateway))


def listen(config: Config) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host.strip("[]"), config.port), family=family)
    except OSError as error:
        raise SetupError(
            f"HOST={config.host} PORT={config.port}: can't listen there ({error.strerror}): expected a free port"
        ) from error


def main(node: Any | None = None) -> None:
    """Console script `dora-voice-gateway`."""
    serve(build, Config, PORTS, node)
