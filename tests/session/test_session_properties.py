"""After any sequence of operations, each session is exactly its history, and answers like a fresh one."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session.conversing import assert_true_to_its_history, finish, greedy, request, said
from session.fake_model import FakeModel, spell

from dora_voice.heard import heard_of
from dora_voice_session.pool import Limits, SessionPool
from dora_voice_session.prefix import common_prefix
from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import ChatMessage, Generation, SessionSettings, StreamingConfig

CONTEXT_TOKENS = 90
BUDGET_TOKENS = 130
MOST_NEW = 12
NAMES = ("a", "b", "c")


class Said:
    """What one session should have: per turn what the user said and what was replied."""

    def __init__(self):
        self.turns = []
        self.given_up = []
        """The turns that made way for the turn `given_up_for`."""
        self.given_up_for: Any = None
        self.is_open = False
        self.interrupted = None
        """The request whose prefill was closed."""
        self.snapshot: Any = None

    def add(self, text, is_open):
        if not self.turns or self.turns[-1][1] is not None:
            self.turns.append([text, None])
        else:
            self.turns[-1][0] += text if self.is_open else f" {text}"
        self.is_open = is_open

    def give_up(self, count):
        """The context was full: the oldest turns made way for the last."""
        if count:
            before = self.given_up if self.given_up_for is self.turns[-1] else []
            self.given_up, self.given_up_for = [*before, *self.turns[:count]], self.turns[-1]
            del self.turns[:count]

    def drop(self):
        if self.turns.pop() is self.given_up_for:
            self.turns = [*self.given_up, *self.turns]
            self.given_up, self.given_up_for = [], None

    def messages(self):
        messages = []
        for user, reply in self.turns:
            if messages and messages[-1].startswith("u:"):
                messages[-1] += f" {user}"
            else:
                messages.append(f"u:{user}")
            if reply and reply.strip():
                messages.append(f"a:{reply}")
        return messages


class World:
    """The sessions of a pool, and what should have been said in each."""

    def __init__(self, can_crop, can_offload):
        self.model = FakeModel(can_crop, can_offload)
        limits = Limits(CONTEXT_TOKENS, budget_bytes=10 * BUDGET_TOKENS, away_bytes=10 * 100)
        brief = SessionSettings(generation=Generation(max_new_tokens=MOST_NEW))
        self.pool = SessionPool(self.model, limits, settings=brief)
        self.expected = {}
        self.count = 0
        self.refusals = set()
        for name in ("a", "b", "a"):
            self.turn(name, "the beginning")

    def do(self, name, what, value):
        self.act(name, what, value)
        self.check()

    def act(self, name, what, value):
        session, expected = self.pool.get(name), self.expected.setdefault(name, Said())
        before = deepcopy(expected)
        try:
            getattr(self, what)(session, expected, value)
        except RefusedError as refused:
            self.refusals.add(refused.code)
            self.expected[name] = before

    def turn(self, name, text):
        """A message and its whole reply."""
        self.do(name, "piece", (text, True, 99))
        self.do(name, "reply", (False, 99))

    def check(self):
        assert self.pool.used_bytes <= 10 * BUDGET_TOKENS
        held = sum(len(cache) for cache in self.model.caches)
        sessions = [self.pool.get(name) for name in self.expected]
        # Nothing is promised to anybody.
        assert self.pool.used_bytes == 10 * held == sum(each.cache_bytes + each.snapshot_bytes for each in sessions)
        assert self.refusals <= {"context_full"}
        for name, expected in self.expected.items():
            session = self.pool.get(name)
            assert said(session) == expected.messages()
            assert spell(session.history_tokens) == "</s>".join(f"<s>{each}" for each in expected.messages())
            assert_true_to_its_history(session)

    def piece(self, session, expected, value):
        """A message, or a piece of one, whose prefill is closed after some slices."""
        text, is_last, slices = value
        self.count += 1
        asked = request(f"{self.count}{text}", is_last_chunk=is_last)
        expected.add(f"{self.count}{text}", not is_last)
        expected.interrupted = asked
        self.prefill(session, expected, asked, slices)

    def again(self, session, expected, slices):
        """The same message as the one that was interrupted."""
        if expected.interrupted is not None:
            self.prefill(session, expected, expected.interrupted, slices)

    def prefill(self, session, expected, asked, slices):
        before, knew = session.tokens, session.logits is not None
        work = session.prefill(asked)
        if self.closed(work, slices):
            # Turns are dropped before the first slice.
            expected.give_up(len(expected.turns) - len(session.turns))
            return
        expected.interrupted = None
        expected.give_up(session.usage.dropped_turns)
        history, usage = session.history_tokens, session.usage
        if self.model.can_crop or not expected.is_open:
            assert list(session.tokens) == history
        assert usage.input_tokens == usage.reused_tokens + usage.computed_tokens == len(session.tokens)
        if self.model.can_crop:
            shared = common_prefix(list(before), history)
            is_again = shared == len(history) and not (knew and len(before) == shared)
            assert usage.computed_tokens == len(history) - shared + is_again

    def closed(self, work, steps, watch=lambda: None):
        """Runs so many steps, or to the end. Returns whether it was closed before that."""
        for _ in range(steps):
            try:
                next(work)
            except StopIteration:
                return False
            watch()
        work.close()
        return True

    def reply(self, session, expected, value):
        """A reply, which is closed after some steps or comes to its end."""
        with_snapshot, steps = value
        expected.interrupted = None
        if not expected.turns or expected.turns[-1][1] is not None:
            with pytest.raises(RefusedError, match="expected a user's message first"):
                finish(session.generate())
            return
        streaming = StreamingConfig(enable_speculative_snapshot=with_snapshot)
        self.answer(session, expected, session.generate(streaming), steps, with_snapshot)

    def complete(self, session, expected, value):
        """A message and its reply in one go, closed after some steps."""
        text, with_snapshot, steps = value
        self.count += 1
        streaming = StreamingConfig(enable_speculative_snapshot=with_snapshot)
        asked = request(f"{self.count}{text}", streaming=streaming)
        expected.add(f"{self.count}{text}", is_open=False)
        expected.interrupted = asked
        self.answer(session, expected, session.complete(asked), steps, with_snapshot)

    def answer(self, session, expected, work, steps, with_snapshot):
        read: list[int] = []

        def watch():
            if len(session.tokens) == session.usage.input_tokens:
                read[:] = session.tokens

        is_closed = self.closed(work, steps, watch)
        expected.give_up(len(expected.turns) - len(session.turns))
        if with_snapshot:
            expected.snapshot = deepcopy((expected.turns, expected.given_up, expected.given_up_for, expected.is_open))
        if session.turns.last.reply is not None:
            self.check_reply(session, expected, read, is_closed)
            expected.turns[-1][1], expected.is_open = session.turns.last.reply, False
            expected.interrupted = None

    def check_reply(self, session, expected, prompt, is_closed):
        assert spell(prompt) == "".join(f"<s>{each}</s>" for each in expected.messages()) + "<s>a:"
        tokens, generated = greedy(self.model, prompt, MOST_NEW), session.usage.generated_tokens
        assert generated == len(tokens) or is_closed
        assert session.turns.last.reply == self.model.decode(tokens[:generated]).rstrip("\ufffd")
        held = session.tokens[len(prompt) :]
        assert list(held) == tokens[: len(held)]

    def rollback(self, session, expected, _):
        result, then = session.rollback(), expected.snapshot
        assert result.success == (then is not None and "evicted" not in (result.reason or ""))
        if then is not None and result.success:
            expected.turns, expected.given_up, expected.given_up_for, expected.is_open = then
            assert result.restored_position == len(session.history_tokens)
        expected.snapshot, expected.interrupted = None, None

    def heard(self, session, expected, text_end):
        replied = expected.turns and expected.turns[-1][1] is not None
        assert session.heard(text_end) == bool(replied)
        if replied:
            expected.turns[-1][1] = heard_of(expected.turns[-1][1], text_end)

    def drop(self, session, expected, _):
        assert session.drop() == bool(expected.turns)
        if expected.turns:
            expected.drop()
            expected.snapshot, expected.interrupted = None, None
        # What is open is a message that is gone now.
        expected.is_open = False if not expected.turns else session.turns.last.is_open

    def edit(self, session, expected, kept):
        """The same history, with another last message."""
        expected.turns = [*expected.turns[:kept], [f"edited {kept}", None]]
        messages = []
        for user, reply in expected.turns:
            messages.append(ChatMessage(role="user", content=user))
            messages += [ChatMessage(role="assistant", content=reply)] if reply is not None else []
        session.edit(messages)
        for i, (_, reply) in enumerate(expected.turns[:-1]):
            if reply is None:
                expected.turns[i + 1][0] = f"{expected.turns[i][0]} {expected.turns[i + 1][0]}"
        expected.turns = [turn for turn in expected.turns[:-1] if turn[1] is not None] + expected.turns[-1:]
        expected.is_open, expected.snapshot, expected.interrupted = False, None, None
        expected.given_up, expected.given_up_for = [], None

    def evict(self, session, expected, _):
        session.evict()
        expected.snapshot = None

    def fork(self, session, expected, new_name):
        self.pool.end(new_name)
        self.expected.pop(new_name, None)
        if new_name != session.session_id:
            self.pool.fork(session.session_id, new_name)
            self.expected[new_name] = deepcopy(expected)
            self.expected[new_name].snapshot = None

    def fail(self, session, expected, nth):
        """The model fails in one of the next steps; what was said stays said."""
        self.count += 1
        expected.add(f"{self.count}", is_open=False)
        self.model.fails_at = ("extend", self.model.calls["extend"] + nth)
        with suppress(MemoryError):
            finish(session.prefill(request(f"{self.count}")))
        self.model.fails_at = None
        expected.give_up(len(expected.turns) - len(session.turns))
        expected.interrupted = None

    def end(self, session, expected, _):
        self.pool.end(session.session_id)
        del self.expected[session.session_id]


TEXTS = st.sampled_from(["", " ", "Hi.", "the a 世界", "🙂", "x" * 30, "é! ab abc", "<s", ">"])
STEPS = st.one_of(st.just(99), st.integers(1, 9))
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.one_of(
            *2 * [st.tuples(st.just("turn"), TEXTS)],
            st.tuples(st.just("piece"), st.tuples(TEXTS, st.booleans(), STEPS)),
            st.tuples(st.just("reply"), st.tuples(st.booleans(), STEPS)),
            st.tuples(st.just("complete"), st.tuples(TEXTS, st.booleans(), STEPS)),
            st.tuples(st.sampled_from(["rollback", "drop", "evict", "end"]), st.none()),
            st.tuples(st.just("heard"), st.integers(0, 15)),
            st.tuples(st.just("edit"), st.integers(0, 3)),
            st.tuples(st.just("again"), STEPS),
            st.tuples(st.just("fork"), st.sampled_from(NAMES)),
            st.tuples(st.just("fail"), st.integers(1, 2)),
        ),
    ),
    min_size=10,
    max_size=40,
)


@settings(max_examples=100)
@given(OPERATIONS, st.booleans(), st.booleans())
def test_after_anything_each_session_is_its_history_and_answers_like_a_fresh_one(operations, can_crop, can_offload):
    world = World(can_crop, can_offload)
    for name, (what, value) in operations:
        if what == "turn":
            world.turn(name, value)
        else:
            world.do(name, what, value)


def turns_of(session, count):
    """Several turns as one piece of work."""
    for i in range(count):
        yield from session.prefill(request(f"the {i} of {session.session_id}"))
        yield from session.generate()


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60),
    st.sampled_from([60, 90, 400]),
    st.booleans(),
    st.booleans(),
)
def test_in_whatever_order_sessions_take_their_steps_none_waits_for_ever(schedule, budget, can_crop, can_offload):
    model = FakeModel(can_crop, can_offload)
    limits = Limits(context_tokens=60, budget_bytes=10 * budget)
    brief = SessionSettings(generation=Generation(max_new_tokens=MOST_NEW))
    pool = SessionPool(model, limits, settings=brief)
    works = [turns_of(pool.get(name), 3) for name in NAMES]

    def step(i):
        assert pool.used_bytes <= 10 * budget
        with suppress(StopIteration):
            next(works[i])
            return True
        assert_true_to_its_history(pool.get(NAMES[i]))
        return False

    for i, is_closed in schedule:
        if is_closed and i == 0:
            works[i].close()
            assert_true_to_its_history(pool.get(NAMES[i]))
            works[i] = turns_of(pool.get(NAMES[i]), 3)
        else:
            step(i)
    for _ in range(1000):
        if sum(step(i) for i in range(len(works))) == 0:
            break
    else:
        raise AssertionError("they wait for each other")
    assert pool.used_bytes == 10 * sum(len(cache) for cache in model.caches)
