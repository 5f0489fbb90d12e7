"""Generators that are closed at any point, and what is done to a session meanwhile."""

from __future__ import annotations

import re

import pytest
from session.conversing import CROPS, ask, assert_true_to_its_history, begun, finish, refusal, request, said, text_of
from session.fake_model import tokenize

from dora_voice_session.cached_tokens import SLICE_TOKENS
from dora_voice_session.schema import ChatMessage, Generation


def test_a_flush_stops_a_long_prefill_within_a_slice_and_the_rest_is_all_that_is_computed_later():
    session = begun("ok")
    text = "x" * 2000
    work = session.prefill(request(text))
    for _ in range(3):
        next(work)
    work.close()
    slices = session._model.slices
    assert slices == [SLICE_TOKENS] * 3
    assert session.cache_length == 3 * SLICE_TOKENS
    usage = finish(session.prefill(request(text))).usage
    assert usage.reused_tokens == 3 * SLICE_TOKENS
    assert usage.computed_tokens == len(tokenize(f"<s>u:{text}")) - 3 * SLICE_TOKENS
    assert max(slices) == SLICE_TOKENS
    assert said(session) == [f"u:{text}"]


def test_a_message_that_was_half_read_may_be_gone_on_with_or_said_again():
    session = begun("ok")
    for piece in ("x" * 100, "y"):
        work = session.prefill(request(piece, is_last_chunk=False))
        next(work, None)
        work.close()
    assert said(session) == ["u:" + "x" * 100 + "y"]
    for pieces in ("y", "yy"):
        finish(session.prefill(request("y", is_last_chunk=False)))
        assert said(session) == ["u:" + "x" * 100 + pieces]


def test_a_system_message_that_was_half_read_is_not_said_twice():
    session = begun("ok")
    for is_closed in (True, True, False):
        work = session.prefill(request("Be brief. " * 10, role="system", is_last_chunk=False))
        next(work)
        work.close() if is_closed else finish(work)
        assert session.settings.system_prompt == "Be brief. " * 10


def test_a_half_read_message_that_was_dropped_is_said_when_it_comes_again():
    session = begun("one")
    ask(session, "Hi.")
    work = session.prefill(request("x" * 100))
    next(work)
    work.close()
    session.drop()
    finish(session.prefill(request("x" * 100)))
    assert said(session)[-1] == "u:" + "x" * 100


def test_a_half_read_message_that_was_answered_is_another_one_when_it_comes_again():
    session = begun("one")
    work = session.prefill(request("x" * 100))
    next(work)
    work.close()
    finish(session.generate())
    finish(session.prefill(request("x" * 100)))
    assert said(session) == ["u:" + "x" * 100, "a:one", "u:" + "x" * 100]


def test_the_same_message_twice_is_two_messages_if_nothing_was_interrupted():
    session = begun("ok")
    for _ in range(2):
        finish(session.prefill(request("Hi.")))
    assert said(session) == ["u:Hi. Hi."]


def test_a_refusal_in_between_does_not_make_a_half_read_message_be_said_twice():
    session = begun("ok", context_tokens=600)
    work = session.prefill(request("x" * 100))
    next(work)
    work.close()
    assert refusal(session, session.prefill(request("y" * 1000))).code == "context_full"
    finish(session.prefill(request("x" * 100)))
    assert said(session) == ["u:" + "x" * 100]


@CROPS
def test_closed_at_any_checkpoint_the_session_is_true_and_the_next_turn_goes_on(can_crop):
    def conversation(closed_after):
        """A turn that is closed at its n-th checkpoint, then another one. Returns whether the first was closed."""
        session = begun("Hello.", "Say the né 🙂#", "Bye.", can_crop=can_crop)
        ask(session, "Hi.")
        count, is_closed, yielded = 0, False, []
        text = "x" * 70
        for work in (session.prefill(request(text)), session.generate(generation=Generation(stop=["##x"]))):
            for chunk in work:
                yielded.append(chunk.text_delta if chunk is not None else "")
                if (count := count + 1) == closed_after:
                    work.close()
                    is_closed = True
            assert_true_to_its_history(session)
            if is_closed:
                break
        assert session.turns.last.reply in ({"".join(yielded)} | ({None} if not any(yielded) else set()))
        ask(session, "Go on.")
        assert_true_to_its_history(session)
        reply = f"</s><s>a:{''.join(yielded).strip()}</s><s>u:Go on." if any(yielded) else " Go on."
        expected = f"<s>u:Hi.</s><s>a:Hello.</s><s>u:{text}{reply}</s><s>a:"
        assert re.sub(r" +</s>", "</s>", text_of(session)).startswith(expected)
        return is_closed

    closed_after = 1
    while conversation(closed_after):
        closed_after += 1
    assert closed_after > 12


def test_a_generate_closed_before_it_began_leaves_the_turn_to_be_answered():
    session = begun("ok")
    finish(session.prefill(request("Hi.")))
    session.generate().close()
    assert finish(session.generate()).full_text == "ok"


def test_a_generate_closed_while_it_reads_leaves_the_turn_to_be_answered():
    session = begun("ok")
    session.add([ChatMessage(role="user", content="x" * 100)])
    work = session.generate()
    next(work)
    work.close()
    assert session.cache_length == SLICE_TOKENS
    assert finish(session.generate()).full_text == "ok"
    assert session.usage.reused_tokens == SLICE_TOKENS


# What happens meanwhile


def meanwhile(change, steps=5):
    """A reply during which `change` is done to the session: the session, and the whole reply."""
    session = begun("one", "The sea is the widest.", "three")
    ask(session, "Hi.")
    finish(session.prefill(request("How is it?")))
    work = session.generate()
    for _ in range(steps):
        next(work)
    change(session)
    response = finish(work)
    assert_true_to_its_history(session)
    return session, response.full_text


@pytest.mark.parametrize("steps", [1, 5, 19])
def test_a_message_that_comes_during_a_reply_waits_behind_it(steps):
    session, reply = meanwhile(
        lambda session: session.add([ChatMessage(role="user", content="And?")], turn_id=7), steps
    )
    assert reply == "The sea is the widest."
    assert said(session) == ["u:Hi.", "a:one", "u:How is it?", f"a:{reply}", "u:And?"]
    assert finish(session.generate()).full_text == "three"


def test_an_earlier_reply_that_is_cut_during_a_reply_does_not_disturb_it():
    session, reply = meanwhile(lambda session: session.heard(0, turn_id=0))
    assert reply == "The sea is the widest."
    assert said(session) == ["u:Hi. How is it?", f"a:{reply}"]
    assert ask(session, "And?").success


def test_a_turn_that_is_dropped_during_its_reply_never_happened():
    session, _ = meanwhile(lambda session: session.drop())
    assert said(session) == ["u:Hi.", "a:one"]


def test_a_reset_during_a_reply_leaves_nothing_of_it():
    session, _ = meanwhile(lambda session: session.reset())
    assert said(session) == []
    assert session.tokens == ()


def test_a_cache_lost_during_a_reply_is_computed_again():
    _, reply = meanwhile(lambda session: session.lose_cache())
    assert reply == "The sea is the widest."


def test_a_drop_during_a_prefill_leaves_nothing_of_it():
    session = begun("one", "two")
    ask(session, "Hi.")
    work = session.prefill(request("x" * 200))
    next(work)
    session.drop()
    finish(work)
    assert said(session) == ["u:Hi.", "a:one"]
    assert_true_to_its_history(session)
