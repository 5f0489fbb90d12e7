"""Who is let in: the token, the web origin, and how often a client may ask. Pure."""

from __future__ import annotations

import hmac
import reprlib
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from dora_voice_gateway.config import is_loopback
from dora_voice_gateway.errors import ClientError

FASTEST_SOUND = 1.5
"""Sound comes as fast as it is spoken; so much faster after the network was slow."""


class Door:
    """`token`: empty if nobody needs one; then only this machine's own names are answered. `origins`: other sites."""

    def __init__(self, token: str, origins: frozenset[str]) -> None:
        self._token = _bytes(token)
        self._origins = origins

    def why_closed(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """Why this client isn't let in; None if it is."""
        return self._why_foreign(headers) or self._why_unknown(headers, query)

    def _why_foreign(self, headers: Mapping[str, str]) -> str | None:
        """A web page of somebody else's must not talk with the robot by the browser of someone who may."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._token and not is_loopback(_hostname(f"//{host}")):
            # A name that somebody else points to this machine would make their page one of ours.
            return f"Host {reprlib.repr(host)}: expected localhost, or GATEWAY_TOKEN to be set"
        if origin is None or origin in self._origins or (host and _netloc(origin) == host.lower()):
            return None
        return f"Origin {reprlib.repr(origin)}: expected one of this server, or one in ORIGINS"

    def _why_unknown(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        if not self._token:
            return None
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        # A header comes as latin-1, whatever its bytes mean.
        given = bearer.strip().encode("latin-1") if scheme.lower() == "bearer" else _bytes(query.get("token", ""))
        if hmac.compare_digest(given, self._token):
            return None
        return "no token: expected ?token=… or Authorization: Bearer …" if not given else "wrong token"


class Rate:
    """At most `per_minute` in any stretch, with as many at once; refilled evenly (token bucket)."""

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self._most = self._left = float(per_minute)
        self._clock = clock
        self._at_s = clock()

    def allows(self, cost: float = 1.0) -> bool:
        now_s = self._clock()
        self._left = min(self._most, self._left + (now_s - self._at_s) * self._most / 60)
        self._at_s = now_s
        if self._left < cost:
            return False
        self._left -= cost
        return True


class RequestRate:
    """How often one connection may ask."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._rate = Rate(per_minute, clock)
        self._per_minute = per_minute

    def check(self) -> None:
        """Raises ClientError if it asks too often."""
        if not self._rate.allows():
            raise ClientError("rate_limited", f"more than REQUESTS_PER_MINUTE={self._per_minute}")


def _bytes(token: str) -> bytes:
    # The environment has bytes that are no UTF-8 as surrogates.
    return token.encode(errors="surrogateescape")


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _netloc(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""
