"""Who is let in, and how often a client may ask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_voice.config import ConfigError, from_env
from dora_voice_gateway.admission import Door, Rate
from dora_voice_gateway.config import Config

OPEN = Door("", frozenset({"https://robot.example"}))
LOCKED = Door("söcret", frozenset({"https://robot.example"}))


@pytest.mark.parametrize("host", ["localhost:8765", "LOCALHOST", "127.0.0.1:8765", "127.1.2.3", "[::1]:8765"])
def test_without_a_token_this_machines_own_names_are_answered(host: str) -> None:
    assert OPEN.why_closed({"host": host}, {}) is None


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "localhost@evil.example", "192.168.1.7:8765", "[", "", "[::2]"]
)
def test_without_a_token_a_name_that_is_only_pointed_here_is_not(host: str) -> None:
    assert "Host" in (OPEN.why_closed({"host": host}, {}) or "")


@pytest.mark.parametrize("origin", ["http://localhost:8765", "http://LocalHost:8765", "https://robot.example"])
def test_pages_of_this_server_and_of_sites_that_are_named_may_connect(origin: str) -> None:
    assert OPEN.why_closed({"host": "localhost:8765", "origin": origin}, {}) is None


@pytest.mark.parametrize(
    "origin",
    [
        *(
            "https://evil.example",
            "null",
            "",
            "http://localhost:9999",
            "http://[",
            "https://robot.example.evil.example",
        ),
        *("http://robot.example", "file://", "http://localhost:8765@evil.example", "localhost:8765"),
    ],
)
def test_pages_of_other_sites_may_not(origin: str) -> None:
    for door, host in ((OPEN, "localhost:8765"), (LOCKED, "localhost:8765"), (LOCKED, "")):
        why = door.why_closed({"host": host, "origin": origin}, {"token": "söcret"})
        assert why is not None
        assert "ORIGINS" in why or "Host" in why


def test_a_token_is_asked_for_in_the_address_or_a_header() -> None:
    as_sent = "söcret".encode().decode("latin-1")
    assert LOCKED.why_closed({"host": "robot"}, {"token": "söcret"}) is None
    assert LOCKED.why_closed({"host": "robot", "authorization": f"Bearer {as_sent}"}, {}) is None
    assert LOCKED.why_closed({"host": "robot", "authorization": f"bearer  {as_sent} "}, {}) is None
    # A proxy's own password is none of ours.
    assert LOCKED.why_closed({"host": "robot", "authorization": "Basic eDp5"}, {"token": "söcret"}) is None


@pytest.mark.parametrize("given", ["wrong", "söcre", "söcrett", "SÖCRET", "söcret\0"])
def test_a_wrong_token_is_refused(given: str) -> None:
    assert LOCKED.why_closed({}, {"token": given}) == "wrong token"


def test_no_token_is_refused_and_what_is_expected_is_said() -> None:
    for headers in ({}, {"authorization": "Bearer "}, {"authorization": "Bearer"}, {"authorization": "söcret"}):
        assert "?token=" in (LOCKED.why_closed(headers, {}) or "")


def test_a_token_in_bytes_that_are_no_text_can_be_given() -> None:
    door = Door("\udcff\udcfe", frozenset())
    assert door.why_closed({"authorization": "Bearer \xff\xfe"}, {}) is None
    assert door.why_closed({"authorization": "Bearer \xff"}, {}) == "wrong token"


@given(st.text(), st.text(), st.text(), st.text())
def test_no_header_makes_it_fail(host: str, origin: str, bearer: str, token: str) -> None:
    """Headers come as latin-1."""
    as_sent = [text.encode("utf-8", "surrogatepass").decode("latin-1") for text in (host, origin, bearer)]
    headers = dict(zip(("host", "origin", "authorization"), as_sent, strict=True))
    bearing = {**headers, "authorization": f"Bearer {headers['authorization']}"}
    for given_headers in (headers, bearing):
        assert len(OPEN.why_closed(given_headers, {"token": token}) or "") < 200
        assert LOCKED.why_closed(given_headers, {"token": token}) is not None


def test_only_a_loopback_address_may_do_without_a_token() -> None:
    for host in ("127.0.0.1", "::1", "[::1]", "localhost"):
        assert from_env(Config, {"HOST": host}).host == host
    for host in ("0.0.0.0", "::", "192.168.1.7", "robot.local", "0"):
        assert from_env(Config, {"HOST": host, "GATEWAY_TOKEN": "x"}).host == host
        with pytest.raises(ConfigError, match=r"HOST=.*GATEWAY_TOKEN"):
            from_env(Config, {"HOST": host})


@pytest.mark.parametrize("name", ["PORT", "PLACES", "MESSAGE_MB", "AUDIO_S", "IMAGE_MEGAPIXELS", "IDLE_S", "VOICES"])
@pytest.mark.parametrize("value", ["many", "-1", "nan", "9e99x"])
def test_settings_that_are_no_numbers_of_use_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}='{value}': expected"):
        from_env(Config, {name: value})


@given(st.integers(1, 200), st.lists(st.tuples(st.floats(0, 30), st.integers(1, 5)), max_size=100))
def test_no_stretch_of_time_has_more_than_a_burst_and_what_was_refilled(per_minute: int, asked: list) -> None:
    now_s = 0.0
    rate = Rate(per_minute, lambda: now_s)
    allowed: list[tuple[float, int]] = []
    for pause_s, cost in asked:
        now_s += pause_s
        if rate.allows(cost):
            allowed.append((now_s, cost))
    for first, (begin_s, _) in enumerate(allowed):
        total = 0
        for end_s, cost in allowed[first:]:
            total += cost
            assert total <= per_minute * (1 + (end_s - begin_s) / 60) + 1e-6


def test_who_waits_may_ask_again() -> None:
    now_s = 0.0
    rate = Rate(2, lambda: now_s)
    assert [rate.allows() for _ in range(3)] == [True, True, False]
    now_s = 29.0
    assert not rate.allows()
    now_s = 30.1
    assert [rate.allows(), rate.allows()] == [True, False]
