"""How tests talk with a session, and what must be true of it whatever was said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from session.fake_model import FakeModel, plain_template, spell

from dora_voice_session.capabilities import Capabilities
from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import ChatMessage, StreamingConfig, StreamingRequest, StreamingResponse
from dora_voice_session.session import Session

ABLE = Capabilities("able", honoured=frozenset({"enable_thinking"}))
SNAPSHOT = StreamingConfig(enable_speculative_snapshot=True)
CROPS = pytest.mark.parametrize("can_crop", [True, False])


def begun(*replies, can_crop=True, template=plain_template, context_tokens=8192, **session):
    model = FakeModel(can_crop, replies=replies, template=template)
    return Session("s", model, context_tokens=context_tokens, **session)


def text_of(session):
    """What the session holds, spelled out."""
    return spell(session.tokens)


def state(session):
    """Everything that a refusal may not change."""
    return (
        said(session),
        [(turn.turn_id, turn.reply, turn.is_open) for turn in session.turns],
        session.settings,
        session.generation,
        session.streaming,
        session.history_tokens,
    )


def refusal(session, work):
    """What `work`, which is refused and changes nothing, is refused with."""
    before, held = state(session), session.tokens
    with pytest.raises(RefusedError) as refused:
        finish(work)
    assert state(session) == before
    assert session.tokens == held
    assert_true_to_its_history(session)
    return refused.value


def computed(session, text):
    """How many tokens a turn takes: those of its prefill, and those from there to where the reply begins."""
    prefilled = finish(session.prefill(request(text))).usage.computed_tokens
    return prefilled, finish(session.generate()).usage.computed_tokens


def until_first_token(session, work):
    """Goes on with a reply until its first token is chosen. Returns what was read until then."""
    while len(session.tokens) != session.usage.input_tokens or session.turns.last.reply is None:
        next(work)
    return session.tokens


def chunks_of(work):
    chunks = []
    while True:
        try:
            chunks.append(next(work))
        except StopIteration as done:
            return [chunk for chunk in chunks if chunk is not None], done.value


def finish(work: Any) -> Any:
    """Runs to the end, and returns what comes of it."""
    for _ in range(10_000):
        try:
            next(work)
        except StopIteration as done:
            return done.value
    raise AssertionError("it waits for something that nobody does")


def request(*texts: str, role: str = "user", is_last_chunk: bool = True, **fields: Any) -> StreamingRequest:
    messages = [ChatMessage(role=role, content=text) for text in texts]
    return StreamingRequest(session_id="s", messages=messages, is_last_chunk=is_last_chunk, **fields)


def ask(session: Session, text: str, **fields: Any) -> StreamingResponse:
    """One turn; `fields` of the request."""
    finish(session.prefill(request(text, **fields)))
    return finish(session.generate())


def said(session: Session) -> list[str]:
    """What the history has: role and text of each message."""
    return [f"{message['role'][0]}:{message['content']}" for message in session.turns.messages()]


def assert_true_to_its_history(session: Session) -> None:
    """The one invariant: tokens and cache are the beginning of the history's, and logits those of a fresh start."""
    model, held = session._model, list(session.tokens)
    assert held == session.history_tokens[: len(held)]
    assert session.cache_length == len(held)
    assert session.away_bytes or held in model.caches
    if session.logits is not None:
        np.testing.assert_array_equal(session.logits, model.extend(model.new_cache(), held))


def greedy(model: FakeModel, tokens: list[int], most: int) -> list[int]:
    """What follows the tokens in a model that has seen nothing else, without the end."""
    cache, reply = model.new_cache(), []
    logits = model.extend(cache, tokens)
    while len(reply) < most and (token := int(np.argmax(logits))) not in model.end_tokens:
        reply.append(token)
        logits = model.extend(cache, [token])
    return reply
