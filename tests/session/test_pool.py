"""Many sessions in one memory: who is evicted, who waits, and that nobody notices but by the time it takes."""

from __future__ import annotations

import gc
import logging

import pytest
from session.conversing import ask, assert_true_to_its_history, finish, request, said
from session.fake_model import FakeModel, spell

from dora_voice_session.pool import Limits, SessionPool
from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import Generation, SessionSettings, StreamingConfig

TOKEN_BYTES = 10
BRIEF = SessionSettings(generation=Generation(max_new_tokens=20))


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def pool(budget_tokens=10_000, *, replies=("Hello the one.",), can_offload=False, can_crop=True, clock=None, **limits):
    model = FakeModel(can_crop, can_offload, replies)
    limits = Limits(context_tokens=2000, budget_bytes=TOKEN_BYTES * budget_tokens, **limits)
    return SessionPool(model, limits, settings=BRIEF, clock=clock or Clock())


@pytest.fixture
def evictions(caplog):
    """Tells how many there were so far."""
    caplog.set_level(logging.INFO, "dora_voice.session")
    return lambda: sum("evicted" in record.getMessage() for record in caplog.records)


def assert_within_budget(pool):
    assert pool.used_bytes <= pool._limits.budget_bytes
    assert TOKEN_BYTES * sum(map(len, pool._model.caches)) <= pool._limits.budget_bytes


def run_together(pool, *works):
    """Steps all of them in turn until all are done. Returns what comes of them, and how many steps each took."""
    results, steps, running = [None] * len(works), [0] * len(works), list(enumerate(works))
    while running:
        assert sum(steps) < 10_000, "they wait for each other"
        for each in list(running):
            i, work = each
            try:
                next(work)
            except StopIteration as done:
                results[i] = done.value
                running.remove(each)
            steps[i] += 1
            assert_within_budget(pool)
    return results, steps


def turn(session, text):
    """Prefill and reply, as one piece of work."""
    yield from session.prefill(request(text))
    return (yield from session.generate())


# Isolation


def test_sessions_know_nothing_of_each_other():
    sessions = pool()
    run_together(sessions, *(turn(sessions.get(name), f"I am {name}.") for name in "abc"))
    for name in "abc":
        assert said(sessions.get(name)) == [f"u:I am {name}.", "a:Hello the one."]
        assert_true_to_its_history(sessions.get(name))


def test_a_session_is_begun_once_and_then_found():
    sessions = pool()
    assert sessions.get("a") is sessions.get("a")
    assert "a" in sessions
    assert "b" not in sessions
    assert len(sessions) == 1


def test_a_system_prompt_of_one_session_is_not_that_of_another():
    sessions = pool()
    finish(sessions.get("a").prefill(request("Be brief.", role="system")))
    assert sessions.get("b").settings == BRIEF


# Budget


def alternating(sessions, turns=20):
    """Two sessions alternate. Returns the tokens that each turn read, found, computed and replayed."""
    usages = []
    for i in range(turns):
        for name in "ab":
            session = sessions.get(name)
            prefilled = finish(session.prefill(request(f"Message the {i} of {name}")))
            usages.append((name, prefilled.usage))
            usages.append((name, finish(session.generate()).usage))
            assert_within_budget(sessions)
            assert_true_to_its_history(session)
    return usages


def test_two_sessions_that_alternate_compute_only_what_is_new_while_the_budget_allows(evictions):
    sessions = pool()
    held = {"a": 0, "b": 0}
    for name, usage in alternating(sessions):
        assert usage.replayed_tokens == 0
        assert usage.reused_tokens == held[name]
        held[name] = usage.input_tokens + usage.generated_tokens
    assert evictions() == 0


@pytest.mark.parametrize("can_crop", [True, False])
def test_under_a_budget_for_one_both_stay_true_and_every_replay_is_in_the_log(caplog, evictions, can_crop):
    plenty, scarce = pool(can_crop=can_crop), pool(1000, can_crop=can_crop)
    usages = alternating(scarce)
    assert_within_budget(scarce)
    alternating(plenty)
    for name in "ab":
        assert said(scarce.get(name)) == said(plenty.get(name))
        assert scarce.get(name).history_tokens == plenty.get(name).history_tokens
    replayed = [usage.replayed_tokens for _, usage in usages if usage.replayed_tokens]
    # The last eviction of each is for good.
    assert evictions() == len(replayed) + 1 > 5
    logged = [record.getMessage() for record in caplog.records if "replaying" in record.getMessage()]
    assert [int(message.split("replaying ")[1].split()[0]) for message in logged] == replayed


def test_evicted_caches_that_can_be_kept_elsewhere_are_not_computed_again(evictions):
    sessions = pool(1000, can_offload=True)
    assert all(usage.replayed_tokens == 0 for _, usage in alternating(sessions))
    assert evictions() > 5


def test_the_least_recently_used_is_evicted_first():
    sessions = pool(110)
    for name in "abc":
        ask(sessions.get(name), "x" * 10)
    sessions.get("a")
    ask(sessions.get("d"), "x" * 10)
    assert [name for name in "abcd" if not sessions.get(name).tokens] == ["b"]


def test_computing_is_using():
    """Also of a session that somebody has held since long ago."""
    sessions = pool(110)
    held = {name: sessions.get(name) for name in "abc"}
    for name in "bca":
        ask(held[name], "x" * 10)
    ask(sessions.get("d"), "x" * 10)
    assert [name for name, session in held.items() if not session.tokens] == ["b"]


def test_what_no_budget_can_hold_is_refused_with_numbers_and_changes_nothing():
    sessions = pool(100)
    session = sessions.get("a")
    ask(session, "Hi.")
    before, held = said(session), session.tokens
    with pytest.raises(
        RefusedError, match=r"session a: \d+ tokens take .* MB of cache, the budget is 0\.\d+ MB"
    ) as refused:
        finish(session.prefill(request("x" * 200)))
    assert refused.value.code == "no_memory"
    assert (said(session), session.tokens) == (before, held)
    assert ask(session, "Ho.").success


def test_a_reply_that_no_budget_can_hold_is_refused_and_the_turn_waits_for_a_shorter_one():
    sessions = pool(100)
    session = sessions.get("a")
    finish(session.prefill(request("x" * 50)))
    with pytest.raises(RefusedError, match="the budget is"):
        finish(session.generate(generation=Generation(max_new_tokens=200)))
    assert said(session) == ["u:" + "x" * 50]
    assert finish(session.generate()).success


# At the same time


def test_anothers_turn_begins_within_one_step():
    sessions = pool()
    talking = turn(sessions.get("a"), "Hi.")
    for _ in range(5):
        next(talking)
    slices = sessions._model.slices
    begun = len(slices)
    other = turn(sessions.get("b"), "Ho.")
    next(other)
    assert len(slices) == begun + 2
    assert spell(sessions.get("b").tokens) == "<s>u:Ho.</s><s>a:"


def test_who_needs_more_than_is_left_waits_for_who_computes_and_then_gets_it(evictions):
    sessions = pool(120)
    first, second = sessions.get("a"), sessions.get("b")
    talking, waiting = turn(first, "x" * 60), turn(second, "y" * 60)
    for _ in range(6):
        next(talking)
    for _ in range(3):
        next(waiting)
        assert second.tokens == ()
        assert first.tokens != ()
    assert finish(talking).full_text == "Hello the one."
    assert finish(waiting).full_text == "Hello the one."
    assert evictions() == 1
    assert first.tokens == ()
    assert ask(first, "Go.").success


def test_nobody_loses_a_cache_to_one_that_has_to_wait_all_the_same(evictions):
    sessions = pool(170)
    ask(sessions.get("idle"), "x" * 10)
    computing = turn(sessions.get("a"), "x" * 60)
    next(computing)
    waiting = turn(sessions.get("b"), "y" * 110)
    next(waiting)
    assert evictions() == 0
    run_together(sessions, computing, waiting)


def test_memory_goes_to_who_came_first():
    """Of five sessions that go on and on, over a budget for two, none gets ahead of the others."""
    sessions = pool(120)
    names = "abcde"

    def talking(name):
        while True:
            yield from sessions.get(name).complete(request("x" * 8))
            sessions.get(name).drop()
            done[name] += 1

    done = dict.fromkeys(names, 0)
    works = [talking(name) for name in names]
    while max(done.values()) < 12:
        for work in works:
            next(work)
        assert max(done.values()) - min(done.values()) <= 2
    assert_within_budget(sessions)


def test_one_that_needs_little_does_not_overtake_one_that_waits_for_much():
    sessions = pool(170)
    computing = sessions.get("c").complete(request("z" * 100))
    next(computing)
    much, little = sessions.get("a").complete(request("x" * 100)), sessions.get("b").complete(request("y"))
    for _ in range(3):
        next(much)
        next(little)
    assert sessions.get("a").tokens == sessions.get("b").tokens == ()
    finish(computing)
    next(little)
    assert sessions.get("b").tokens == ()
    next(much)
    assert sessions.get("a").tokens != ()
    run_together(sessions, much, little)


@pytest.mark.parametrize("leaves", ["closed", "ended"])
def test_one_that_leaves_the_line_does_not_hold_up_those_behind(leaves):
    sessions = pool(120)
    computing = sessions.get("c").complete(request("z" * 60))
    next(computing)
    first, second = (sessions.get(name).complete(request("x" * 60)) for name in "ab")
    next(first)
    next(second)
    first.close() if leaves == "closed" else sessions.end("a")
    finish(computing)
    assert finish(second).success


@pytest.mark.parametrize("budget_tokens", [90, 120, 200, 10_000])
@pytest.mark.parametrize("can_offload", [True, False])
def test_however_many_compute_at_once_all_of_them_finish_within_the_budget(budget_tokens, can_offload):
    sessions = pool(budget_tokens, can_offload=can_offload)
    for i in range(2):
        works = [turn(sessions.get(name), f"{name}{i}" * 8) for name in "abcde"]
        results, _ = run_together(sessions, *works)
        assert [result.full_text for result in results] == ["Hello the one."] * 5
        for name in "abcde":
            assert_true_to_its_history(sessions.get(name))


def test_nobody_that_computes_is_evicted():
    sessions = pool(120)
    talking = turn(sessions.get("a"), "x" * 40)
    next(talking)
    held = len(sessions.get("a").tokens)
    assert held
    ask(sessions.get("b"), "y" * 5)
    assert len(sessions.get("a").tokens) == held
    finish(talking)


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_turn_that_is_closed_anywhere_leaves_its_memory_to_others(steps):
    sessions = pool(120)
    computing = turn(sessions.get("c"), "z" * 60)
    next(computing)
    work = turn(sessions.get("a"), "x" * 60)
    for _ in range(steps):
        if steps == 3:
            finish(computing)
        next(work)
    work.close()
    computing.close()
    assert finish(turn(sessions.get("b"), "y" * 60)).success


@pytest.mark.parametrize("method", ["extend", "decode", "render", "tokenize"])
def test_a_turn_that_fails_anywhere_leaves_its_memory_to_others(method):
    failing = 0
    while True:
        failing += 1
        sessions = pool(120)
        sessions._model.fails_at = (method, failing)
        try:
            finish(turn(sessions.get("a"), "x" * 60))
        except (MemoryError, RefusedError):
            sessions._model.fails_at = None
            assert finish(turn(sessions.get("b"), "y" * 60)).success
        else:
            break
    assert failing > 3


def test_a_snapshot_is_not_lost_to_others_while_the_reply_waits_for_memory():
    sessions = pool(120)
    session = sessions.get("a")
    finish(session.prefill(request("x" * 40)))
    computing = sessions.get("b").complete(request("y" * 60))
    next(computing)
    waiting = session.generate(StreamingConfig(enable_speculative_snapshot=True))
    next(waiting)
    session.evict()
    finish(computing)
    finish(waiting)
    assert session.rollback().success
    assert said(session) == ["u:" + "x" * 40]


# Snapshots that are caches of their own


SNAPSHOT = StreamingConfig(enable_speculative_snapshot=True)


@pytest.mark.parametrize("budget_tokens", [110, 150, 170, 300, 10_000])
def test_a_snapshot_of_a_model_that_cannot_go_back_counts_into_the_budget(budget_tokens):
    sessions = pool(budget_tokens, can_crop=False)

    def talking(name):
        session = sessions.get(name)
        for text in ("x" * 30, "y"):
            yield from session.prefill(request(text))
            yield from session.generate(SNAPSHOT)
        if session.rollback().success:
            assert said(session)[-1] == "u:y"
        assert_true_to_its_history(session)

    run_together(sessions, *(talking(name) for name in "abc"))


def test_a_snapshot_for_which_there_is_no_room_costs_a_replay_but_no_reply():
    sessions = pool(110, can_crop=False)
    session = sessions.get("a")
    finish(session.prefill(request("x" * 50)))
    assert finish(session.generate(SNAPSHOT)).success
    assert session.snapshot_bytes == 0
    assert session.rollback().success
    assert said(session) == ["u:" + "x" * 50]
    finish(session.compute())
    assert session.usage.replayed_tokens > 50


def test_a_snapshot_gives_way_to_the_session_that_it_is_of():
    sessions = pool(110, can_crop=False)
    session = sessions.get("a")
    finish(session.prefill(request("x" * 20)))
    finish(session.generate(SNAPSHOT))
    assert session.snapshot_bytes == TOKEN_BYTES * len(f"?u:{'x' * 20}")
    assert ask(session, "y" * 30).success
    assert session.snapshot_bytes == 0
    assert_within_budget(sessions)
    assert session.rollback().success
    assert said(session) == ["u:" + "x" * 20]


# Elsewhere


def test_there_is_a_limit_to_what_is_kept_elsewhere_too():
    sessions = pool(100, can_offload=True, away_bytes=TOKEN_BYTES * 70)
    for name in "abc":
        ask(sessions.get(name), "x" * 30)
    assert [bool(sessions.get(name).away_bytes) for name in "abc"] == [False, True, False]
    assert sessions.get("a").tokens == ()
    assert finish(sessions.get("a").prefill(request("Go."))).usage.replayed_tokens > 30


def test_a_cache_that_came_back_is_not_counted_elsewhere_any_more():
    sessions = pool(100, can_offload=True, away_bytes=TOKEN_BYTES * 70)
    for name in "abababab":
        assert ask(sessions.get(name), "x").usage.replayed_tokens == 0
    assert sum(sessions.get(name).away_bytes for name in "ab") <= TOKEN_BYTES * 70


@pytest.mark.parametrize(
    "forget",
    [
        lambda sessions: sessions.end("a"),
        lambda sessions: sessions.get("a").reset(),
        lambda sessions: sessions.get("a").drop(),
    ],
    ids=["end", "reset", "drop"],
)
def test_a_cache_that_is_given_up_elsewhere_leaves_its_place_to_others(forget):
    sessions = pool(100, can_offload=True, away_bytes=TOKEN_BYTES * 70)
    ask(sessions.get("a"), "x" * 30)
    ask(sessions.get("b"), "y" * 30)
    assert sessions.get("a").away_bytes
    forget(sessions)
    ask(sessions.get("c"), "z" * 30)
    assert sessions.get("b").away_bytes
    assert finish(sessions.get("b").prefill(request("Go."))).usage.replayed_tokens == 0


def test_a_cache_that_comes_back_is_not_lost_to_the_one_that_makes_room_for_it(evictions):
    sessions = pool(100, can_offload=True, away_bytes=TOKEN_BYTES * 70)
    for name, text in (("a", "x" * 30), ("b", "x" * 30), ("a", ""), ("b", "")):
        finish(sessions.get(name).prefill(request(text)))
        assert sessions.get(name).usage.replayed_tokens == 0
        finish(sessions.get(name).generate())
        assert_true_to_its_history(sessions.get(name))
    assert evictions() == 3


def test_a_cache_that_is_away_and_not_needed_yet_can_be_evicted_again():
    sessions = pool(100, can_offload=True)
    first = sessions.get("a")
    ask(first, "x" * 30)
    for _ in range(2):
        ask(sessions.get("b"), "y" * 10)
        finish(first.compute())
        sessions.get("a")
    assert ask(first, "Go.").usage.replayed_tokens == 0
    assert_true_to_its_history(first)


# Fork, rollback


def test_a_fork_has_the_same_past_and_a_name_of_its_own():
    sessions = pool()
    ask(sessions.get("a"), "Hi.")
    fork = sessions.fork("a", "b")
    assert fork is sessions.get("b")
    ask(fork, "Ho.")
    assert said(sessions.get("a")) == ["u:Hi.", "a:Hello the one."]
    assert fork.usage.replayed_tokens == 0


@pytest.mark.parametrize(("old", "new", "code"), [("x", "b", "unknown_session"), ("a", "a", "bad_request")])
def test_a_fork_that_cannot_be_is_refused(old, new, code):
    sessions = pool()
    sessions.get("a")
    with pytest.raises(RefusedError) as refused:
        sessions.fork(old, new)
    assert refused.value.code == code
    assert len(sessions) == 1


def test_a_session_of_the_pool_may_be_forked_without_it():
    sessions = pool()
    ask(sessions.get("a"), "Hi.")
    fork = sessions.get("a").fork("b")
    assert sessions.get("b") is fork
    assert ask(fork, "Ho.").success
    with pytest.raises(RefusedError, match="session a has begun already"):
        fork.fork("a")


def test_a_fork_stays_within_the_budget():
    sessions = pool(120)
    ask(sessions.get("a"), "x" * 60)
    fork = sessions.fork("a", "b")
    assert_within_budget(sessions)
    assert ask(fork, "Ho.").success
    assert ask(sessions.get("a"), "Ho.").success


def test_a_fork_of_one_that_computes_stays_within_the_budget():
    sessions = pool(120)
    talking = turn(sessions.get("a"), "x" * 60)
    for _ in range(6):
        next(talking)
    fork = sessions.fork("a", "b")
    assert_within_budget(sessions)
    assert finish(talking).full_text == "Hello the one."
    assert said(fork)[0] == "u:" + "x" * 60
    assert_true_to_its_history(fork)
    assert ask(fork, "Ho.").success


def test_a_rollback_says_why_it_cannot_be():
    sessions = pool(120)
    assert sessions.rollback("a").reason == "unknown session a"
    assert "a" not in sessions
    ask(sessions.get("a"), "Hi.")
    assert "no snapshot" in (sessions.rollback("a").reason or "")
    finish(sessions.get("a").prefill(request("Ho.")))
    finish(sessions.get("a").generate(StreamingConfig(enable_speculative_snapshot=True)))
    ask(sessions.get("b"), "y" * 70)
    before = said(sessions.get("a"))
    result = sessions.rollback("a")
    assert not result.success
    assert "evicted" in (result.reason or "")
    assert said(sessions.get("a")) == before


def test_a_rollback_restores_once():
    sessions = pool()
    finish(sessions.get("a").prefill(request("Hi.")))
    finish(sessions.get("a").generate(StreamingConfig(enable_speculative_snapshot=True)))
    assert sessions.rollback("a").success
    assert not sessions.rollback("a").success
    assert said(sessions.get("a")) == ["u:Hi."]


# The end


def test_a_session_that_ended_is_freed_at_once():
    sessions = pool()
    ask(sessions.get("a"), "Hi.")
    assert sessions._model.caches
    gc.disable()
    try:
        sessions.end("a")
        assert not sessions._model.caches
    finally:
        gc.enable()
    assert "a" not in sessions
    assert sessions.used_bytes == 0
    assert said(sessions.get("a")) == []


def test_the_end_of_an_unknown_session_is_no_error():
    sessions = pool()
    sessions.end("a")
    assert len(sessions) == 0


def test_a_session_that_ended_while_it_computed_has_no_claim_on_its_successor():
    sessions = pool(120)
    old = turn(sessions.get("a"), "x" * 30)
    next(old)
    sessions.end("a")
    new = turn(sessions.get("a"), "y" * 60)
    next(new)
    old.close()
    other = turn(sessions.get("b"), "z" * 60)
    next(other)
    assert sessions.get("b").tokens == ()
    run_together(sessions, new, other)
    assert said(sessions.get("a"))[0] == "u:" + "y" * 60


def test_a_session_that_ended_while_it_waited_takes_nothing_from_its_successor():
    sessions = pool(120)
    computing = turn(sessions.get("c"), "z" * 60)
    next(computing)
    old = turn(sessions.get("a"), "x" * 60)
    next(old)
    sessions.end("a")
    new = sessions.get("a")
    with pytest.raises(RefusedError, match="session a has ended") as refused:
        next(old)
    assert refused.value.code == "unknown_session"
    finish(computing)
    assert ask(new, "Hi.").success


def test_sessions_that_nobody_uses_expire(caplog):
    caplog.set_level(logging.INFO, "dora_voice.session")
    clock = Clock()
    sessions = pool(clock=clock, idle_s=60.0)
    for name in "ab":
        ask(sessions.get(name), "Hi.")
    clock.now_s = 60.0
    assert sessions.expire() == []
    sessions.get("b")
    clock.now_s = 61.0
    assert sessions.expire() == ["a"]
    assert "a" not in sessions
    assert "session=a: not used for 60 s, ended" in caplog.text


def test_a_session_that_computes_does_not_expire_and_computing_is_using():
    clock = Clock()
    sessions = pool(clock=clock, idle_s=60.0)
    session = sessions.get("a")
    talking = turn(session, "x" * 100)
    next(talking)
    clock.now_s = 100.0
    assert sessions.expire() == []
    finish(talking)
    assert sessions.expire() == []
    clock.now_s = 170.0
    assert sessions.expire() == ["a"]


def test_a_session_that_waits_for_memory_does_not_expire():
    clock = Clock()
    sessions = pool(120, clock=clock, idle_s=60.0)
    computing = turn(sessions.get("b"), "y" * 60)
    next(computing)
    waiting = turn(sessions.get("a"), "x" * 60)
    next(waiting)
    clock.now_s = 100.0
    assert sessions.expire() == []
    run_together(sessions, computing, waiting)


def test_there_is_a_limit_to_how_many_sessions_there_are():
    sessions = pool(most_sessions=2)
    for name in "ab":
        sessions.get(name)
    for begin in (lambda: sessions.get("c"), lambda: sessions.fork("a", "c")):
        with pytest.raises(RefusedError, match="session c: there are 2 already") as refused:
            begin()
        assert refused.value.code == "too_many_sessions"
    assert [len(sessions), "c" in sessions] == [2, False]
    sessions.end("a")
    assert said(sessions.get("c")) == []
