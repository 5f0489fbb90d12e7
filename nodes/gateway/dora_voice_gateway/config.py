"""The gateway's settings, read from the environment."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from dora_voice.config import ConfigError, setting


@dataclass(frozen=True, slots=True)
class Config:
    host: str = setting("127.0.0.1", "address to listen on; any but a loopback one needs GATEWAY_TOKEN")
    port: int = setting(8765, "TCP port; 0: any that is free", minimum=0, maximum=65535)
    gateway_token: str = setting("", "what clients have to know; empty: nothing, on a loopback address only")
    origins: str = setting("", "other web origins that may connect, such as https://robot.example, separated by |")
    connections: int = setting(64, "clients at the same time", minimum=1)
    places: int = setting(8, "requests that are answered at the same time; the others wait in line", minimum=1)
    voices: int = setting(8, "voice conversations at the same time; the others wait in line", minimum=1)
    requests_per_minute: int = setting(120, "requests of one client", minimum=1)
    message_mb: int = setting(32, "longest message of a client", minimum=1, maximum=1024)
    audio_s: int = setting(120, "seconds of sound in a request", minimum=1)
    image_megapixels: float = setting(16.0, "largest picture", minimum=0.01)
    video_s: int = setting(60, "longest film", minimum=1)
    request_s: int = setting(300, "a request that takes longer is given up", minimum=1)
    idle_s: int = setting(900, "a connection on which nothing is said for so long is closed", minimum=1)

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and not self.gateway_token:
            raise ConfigError(
                f"HOST={self.host!r} is no loopback address: expected GATEWAY_TOKEN to be set, to a long random text"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
