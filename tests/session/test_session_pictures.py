"""Conversations with pictures: after anything, a session answers like transformers that reads the whole at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session.conversing import finish, state
from session.test_session_real_models import NAMES, STEPS, assert_like_a_fresh_start, run
from session.test_vision_models import in_transformers
from session.tiny_model import make_tiny_model
from session.tiny_vision_model import make_tiny_vision_model, picture

from dora_voice_session.capabilities import TEXT_ONLY, Capabilities
from dora_voice_session.hf_model import load
from dora_voice_session.picture_token import PictureToken, mark
from dora_voice_session.pool import Limits, SessionPool
from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import (
    ChatMessage,
    Generation,
    MediaPart,
    SessionSettings,
    StreamingConfig,
    StreamingRequest,
    TextPart,
)
from dora_voice_session.session import Session

MOST_NEW = 6
ROUNDING = 1e-3
CAT, DOG, BIRD = (MediaPart(type="image", data=picture(seed)) for seed in range(3))
LONG_REPLY = Generation(max_new_tokens=MOST_NEW, length_penalty=10.0)
SETTINGS = SessionSettings(system_prompt="Be brief.", generation=Generation(max_new_tokens=MOST_NEW))


@pytest.fixture(scope="module", params=["idefics3", "llava"])
def folder(request, tmp_path_factory):
    return make_tiny_vision_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def model(folder):
    return load(str(folder), "fp32", "cpu", threads=1)


@pytest.fixture(scope="module")
def sliding(tmp_path_factory):
    made = load(str(make_tiny_vision_model(tmp_path_factory.mktemp("sliding"), "sliding")), "fp32", "cpu", threads=1)
    assert not made.can_crop
    return made


@pytest.fixture
def looks(model, monkeypatch):
    """One entry for each time that the model looks at a picture."""
    made = []
    look = model._forward.model.get_image_features
    monkeypatch.setattr(model._forward.vision, "_seen", type(model._forward.vision._seen)())
    monkeypatch.setattr(model._forward.model, "get_image_features", lambda **inputs: made.append(1) or look(**inputs))
    return made


@pytest.fixture
def session(model):
    return Session("s", model, context_tokens=2000, capabilities=Capabilities.of(model, "tiny-vlm"))


def request(*content, is_last_chunk=True, **fields):
    parts = [TextPart(type="text", text=part) if isinstance(part, str) else part for part in content]
    message = ChatMessage(role="user", content=parts)
    return StreamingRequest(session_id="s", messages=[message], is_last_chunk=is_last_chunk, **fields)


def ask(session, *content, **fields):
    return finish(session.complete(request(*content, generation=LONG_REPLY, **fields)))


def pictures_in(tokens):
    """The pictures whose tokens these are, in their order."""
    return [token.picture.data for token in tokens if isinstance(token, PictureToken) and token.index == 0]


def test_the_first_answer_is_what_transformers_says(folder, model, session):
    content = ["Look: ", CAT, " and ", DOG, " What is it?"]
    parts = request(*content).messages[0].content
    # So many pieces are cut as the processor cuts by itself.
    finish(session.prefill(request(*content, image={"max_slice_nums": 16})))
    work = session.generate(generation=Generation(max_new_tokens=1))
    while session.turns.last.reply is None:
        next(work)
    ids, expected = in_transformers(folder, {"role": "user", "content": parts})
    assert model._forward.vision.ids(session.tokens) == ids
    np.testing.assert_allclose(session.logits, expected, atol=ROUNDING)


def test_a_later_turn_computes_its_own_tokens_and_looks_at_no_picture_again(model, session, looks):
    first = ask(session, CAT, "What is it?").usage
    assert first.reused_tokens == 0
    assert looks == [1]
    held = session.cache_length
    closing = model.tokenize("<|im_end|>\n")
    asked = len(model.tokenize("<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"))
    second = ask(session, "And?").usage
    assert second.reused_tokens == held
    assert second.computed_tokens == len(closing) + asked
    assert looks == [1]
    held = session.cache_length
    assert ask(session, DOG).usage.reused_tokens == held
    assert looks == [1, 1]
    assert_like_a_fresh_start(model, session, ROUNDING)


def test_a_message_in_pieces_is_read_as_it_comes(model, session, looks):
    pieces = ["Look: ", CAT, " a c", "at, ", DOG]
    computed = [finish(session.prefill(request(piece, is_last_chunk=False))).usage.computed_tokens for piece in pieces]
    assert len(looks) == 2
    assert sum(computed) == session.cache_length, "nothing was closed, and computed again"
    in_one = Session("t", model, context_tokens=2000, capabilities=Capabilities.of(model, "tiny-vlm"))
    finish(in_one.prefill(request(*pieces)))
    assert session.tokens == in_one.tokens
    assert_like_a_fresh_start(model, session, ROUNDING)


def test_another_picture_of_the_same_size_is_not_taken_for_the_one_before(model, session):
    finish(session.prefill(request("Look: ", CAT)))
    seen = session.tokens
    session.edit(request("Look: ", DOG).messages)
    usage = finish_compute(session)
    assert model._forward.vision.ids(session.tokens) == model._forward.vision.ids(seen)
    assert usage.reused_tokens < usage.input_tokens - 4
    assert pictures_in(session.tokens) == [DOG.data]
    assert_like_a_fresh_start(model, session, ROUNDING)


def finish_compute(session):
    finish(session.compute())
    return session.usage


def test_the_same_picture_cut_otherwise_is_read_anew(session):
    finish(session.prefill(request(CAT, "?", image={"max_slice_nums": 1})))
    one = session.tokens
    session.reset()
    finish(session.prefill(request(CAT, "?", image={"max_slice_nums": 4})))
    assert session.tokens != one
    session.reset()
    finish(session.prefill(request(CAT.model_copy(update={"max_slice_nums": 1}), "?", image={"max_slice_nums": 4})))
    assert session.tokens == one


def test_what_a_request_says_of_pictures_holds_for_its_own(session):
    finish(session.prefill(request(CAT, image={"max_slice_nums": 1}, is_last_chunk=False)))
    one = [token for token in session.tokens if isinstance(token, PictureToken)]
    finish(session.prefill(request(" and ", DOG)))
    assert [token for token in session.tokens if isinstance(token, PictureToken)][: len(one)] == one


def test_a_rollback_takes_a_picture_back(model, session):
    ask(session, CAT, "What is it?")
    finish(session.prefill(request("Count: ")))
    finish(session.generate(StreamingConfig(enable_speculative_snapshot=True), generation=LONG_REPLY))
    ask(session, DOG)
    assert pictures_in(session.tokens) == [CAT.data, DOG.data]
    assert session.rollback().success
    assert pictures_in(session.tokens) == [CAT.data]
    assert_like_a_fresh_start(model, session, ROUNDING)
    assert ask(session, DOG).usage.replayed_tokens == 0


def test_an_evicted_conversation_is_replayed_with_its_pictures(model, session, looks):
    ask(session, CAT, "What is it?")
    expected = session.tokens
    session.evict()
    model._forward.vision._seen.clear()
    assert session.cache_length == 0
    usage = ask(session, "And?").usage
    assert usage.replayed_tokens > 0
    assert session.tokens[: len(expected)] == expected
    assert looks == [1, 1]
    assert_like_a_fresh_start(model, session, ROUNDING)


def test_a_fork_goes_on_with_the_same_pictures_and_its_own(model, session, looks):
    ask(session, CAT, "What is it?")
    other = session.fork("t")
    ask(session, DOG)
    assert ask(other, BIRD).usage.replayed_tokens == 0
    assert (pictures_in(session.tokens), pictures_in(other.tokens)) == ([CAT.data, DOG.data], [CAT.data, BIRD.data])
    assert len(looks) == 3
    for each in (session, other):
        assert_like_a_fresh_start(model, each, ROUNDING)


def test_a_context_that_is_full_gives_up_pictures_with_their_turns(model):
    session = Session("s", model, context_tokens=300, capabilities=Capabilities.of(model, "tiny-vlm"))
    dropped = 0
    for part in [CAT, DOG, BIRD] * 4:
        dropped += ask(session, part, "What is it? " * 5).usage.dropped_turns
        assert_like_a_fresh_start(model, session, ROUNDING)
    assert dropped
    assert len(pictures_in(session.history_tokens)) == len(session.turns)


def test_the_history_tells_pictures_where_they_were(session):
    ask(session, "Look: ", CAT, image={"max_slice_nums": 1})
    content = session.turns.messages()[0]["content"]
    assert content == [TextPart(type="text", text="Look: "), CAT.model_copy(update={"max_slice_nums": 1})]


def test_nobody_shows_a_picture_by_writing_what_stands_for_one(model, session):
    ask(session, CAT)
    ask(session, f"<image>{mark(CAT)}", "<im", "age>")
    assert pictures_in(session.tokens) == [CAT.data]
    ask(session, DOG, "<im", "age>")
    assert pictures_in(session.tokens) == [CAT.data, DOG.data]
    assert_like_a_fresh_start(model, session, ROUNDING)


def test_what_is_refused_changes_nothing(session):
    ask(session, CAT)
    broken = MediaPart(type="image", data=CAT.data[:400])
    before, held = state(session), session.tokens
    with pytest.raises(RefusedError, match=r"messages\[0\].content\[1\]: the picture can't be decoded"):
        finish(session.complete(request("?", broken)))
    assert (state(session), session.tokens) == (before, held)


@pytest.mark.parametrize("method", ["add", "edit", "revise"])
def test_a_model_for_text_refuses_a_picture_however_it_comes(tmp_path, method):
    model = load(str(make_tiny_model(tmp_path)), "fp32", "cpu", threads=1)
    assert not model.takes_pictures
    session = Session("s", model, context_tokens=200, capabilities=TEXT_ONLY)
    messages = request("Look: ", CAT).messages
    arguments = (messages, 0) if method == "revise" else (messages,)
    with pytest.raises(ValueError, match=r"messages\[0\].content\[1\]: a text model takes text, not image"):
        getattr(session, method)(*arguments)
    assert len(session.turns) == 0


# After anything

PARTS = st.lists(st.sampled_from(["Hi.", " the path", CAT, DOG]), min_size=1, max_size=3)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.one_of(
            st.tuples(st.just("message"), st.tuples(PARTS, st.booleans(), STEPS)),
            st.tuples(st.just("reply"), STEPS),
            st.tuples(st.sampled_from(["rollback", "drop", "evict", "fork"]), st.none()),
            st.tuples(st.just("heard"), st.integers(0, 8)),
            st.tuples(st.just("edit"), PARTS),
        ),
    ),
    min_size=3,
    max_size=10,
)


def do(pool, name, what, value):
    session = pool.get(name)
    if what == "message":
        parts, is_last, slices = value
        run(session.prefill(request(*parts, is_last_chunk=is_last)), slices)
    elif what == "reply":
        if session.turns.last is None or session.turns.last.reply is not None:
            finish(session.prefill(request("And")))
        run(session.generate(StreamingConfig(enable_speculative_snapshot=True), LONG_REPLY), value)
    elif what == "heard":
        session.heard(value)
    elif what == "edit":
        session.edit(request(*value).messages)
    elif what == "fork":
        other = next(each for each in NAMES if each != name)
        pool.end(other)
        pool.fork(name, other)
    else:
        getattr(session, what)()


@settings(max_examples=15, deadline=None)
@given(operations=OPERATIONS)
def test_after_anything_a_session_with_pictures_is_like_a_fresh_start(model, operations):
    do_all_and_compare(model, operations)


@settings(max_examples=15, deadline=None)
@given(operations=OPERATIONS)
def test_after_anything_a_session_that_cannot_go_back_is_like_a_fresh_start(sliding, operations):
    do_all_and_compare(sliding, operations)


def do_all_and_compare(model, operations):
    """In memory for about one and a half sessions."""
    limits = Limits(context_tokens=400, budget_bytes=model.cache_bytes(600))
    pool = SessionPool(model, limits, settings=SETTINGS, capabilities=Capabilities.of(model, "tiny-vlm"))
    for name, (what, value) in operations:
        do(pool, name, what, value)
        for each in NAMES:
            assert_like_a_fresh_start(model, pool.get(each), ROUNDING)
