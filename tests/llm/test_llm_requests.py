"""The request port: every document gets its results, in order, and the last says how it ended."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from llm.recorder import Recorder, ask, history, make_stage, request, results

from dora_voice.messages import Control, Played, Text
from dora_voice.testing import Driver
from dora_voice_llm.node import PORTS
from dora_voice_session.requests import RESULT


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def driver(recorder):
    return Driver(make_stage(recorder), PORTS, wired={"text", "control", "request"})


def prefill(text="Count.", session_id="a", role="user", **more):
    messages = [{"role": role, "content": text}]
    return {"type": "prefill", "request": {"session_id": session_id, "messages": messages, **more}}


def generate(session_id="a", **more):
    return {"type": "generate", "session_id": session_id, **more}


def act(what, session_id="a", **more):
    return {"type": what, "session_id": session_id, **more}


def complete(text="Count.", session_id="a", **more):
    return {**prefill(text, session_id, **more), "type": "complete"}


def text_of(messages):
    return "".join(m.text for m in messages if m.port == "text")


def test_a_message_in_pieces_is_read_as_it_comes_and_then_answered(driver):
    (first,) = ask(driver, prefill("How are"), 1)
    assert first["type"] == "prefilled"
    usage = first["result"]["usage"]
    assert usage["input_tokens"] == usage["computed_tokens"] > 0
    (second,) = ask(driver, prefill(" you today?", is_last_chunk=True), 2)
    assert second["result"]["usage"]["reused_tokens"] == usage["input_tokens"]
    *chunks, last = ask(driver, generate(), 3)
    assert [chunk["type"] for chunk in chunks] == ["chunk"] * 5
    assert [chunk["chunk"]["chunk_index"] for chunk in chunks] == list(range(5))
    assert "".join(chunk["chunk"]["text_delta"] for chunk in chunks) == "One two three four."
    assert [chunk["chunk"]["is_final"] for chunk in chunks] == [False] * 4 + [True]
    assert last["type"] == "response"
    assert last["response"]["full_text"] == "One two three four."
    assert (last["response"]["total_chunks"], last["response"]["success"]) == (5, True)
    assert history(driver) == [("user", "How are you today?"), ("assistant", "One two three four.")]


def test_a_result_is_one_document_of_the_schema_and_only_the_last_has_fin(driver):
    driver.feed(request(complete(), 1))
    driver.run()
    made = [m for m in driver.sent if m.port == "result"]
    assert [m.fin for m in made] == [True]
    for m in made:
        assert RESULT.validate_json(m.text).session_id == "a"
    driver.feed(request(prefill(), 2, fin=False), request(generate(), 2, seq=1))
    driver.run()
    made = [m for m in driver.sent if m.port == "result" and m.segment_id == 2]
    assert [m.fin for m in made] == [False] * (len(made) - 1) + [True]


def test_a_request_id_comes_back_with_every_result(driver):
    ask(driver, prefill(), 1)
    assert {result["request_id"] for result in ask(driver, generate(request_id="q7"), 2)} == {"q7"}
    (failed,) = ask(driver, generate(request_id="q8"), 3)
    assert (failed["type"], failed["request_id"]) == ("error", "q8")


def test_complete_reads_and_answers_in_one(driver):
    (response,) = ask(driver, complete("One?"), 1)
    assert response["response"]["full_text"] == "One two three four."
    (again,) = ask(driver, complete("Two?"), 2)
    assert again["response"]["usage"]["reused_tokens"] > response["response"]["usage"]["input_tokens"]
    assert [content for _, content in history(driver)] == ["One?", "One two three four.", "Two?", "One two three four."]


def test_spoken_replies_go_to_the_text_output_too_and_others_do_not(driver):
    ask(driver, complete(), 1)
    assert text_of(driver.sent) == "One two three four."
    fragments = [m for m in driver.sent if m.port == "text"]
    assert [m.fin for m in fragments] == [False] * 4 + [True]
    assert [(m.text_start, m.text_end) for m in fragments] == [(0, 3), (3, 7), (7, 13), (13, 19), (19, 19)]
    already = len(driver.sent)
    ask(driver, complete(streaming={"generate_audio": False}), 2)
    assert text_of(driver.sent[already:]) == ""


def test_audio_that_goes_nowhere_is_refused_by_name(recorder):
    driver = Driver(make_stage(recorder), PORTS, wired={"request"}, wired_outputs={"result"})
    (failed,) = ask(driver, complete(streaming={"generate_audio": True}), 1)
    assert failed["code"] == "unsupported_field"
    assert "streaming.generate_audio=True" in failed["error"]
    assert ask(driver, complete(), 2)[0]["type"] == "response"
    assert text_of(driver.sent) == ""


def test_the_next_reply_waits_until_a_spoken_one_was_heard_and_the_history_keeps_that(recorder):
    driver = Driver(make_stage(recorder), PORTS, wired={"request", "played", "control"})
    ask(driver, complete(), 1)
    assert ask(driver, complete("And?"), 2) == []
    driver.feed(Played(port="played", samples=1, text_end=8, session_id="a", segment_id=1, fin=True))
    assert results(driver.run())[0]["type"] == "response"
    assert history(driver)[:2] == [("user", "Count."), ("assistant", "One two")]


def test_edit_replaces_what_was_said_and_reuses_what_is_the_same(driver):
    ask(driver, complete("One?"), 1)
    whole = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "Two?"},
    ]
    edit = {"type": "edit", "request": {"session_id": "a", "messages": whole, "is_last_chunk": True}}
    (prefilled,) = ask(driver, edit, 2)
    assert prefilled["type"] == "prefilled"
    assert [content for _, content in history(driver)] == ["One?", "One.", "Two?"]
    (again,) = ask(driver, edit, 3)
    usage = again["result"]["usage"]
    assert usage["computed_tokens"] <= 1
    assert ask(driver, generate(), 4)[-1]["response"]["success"]


def step_until(driver, n_results):
    while len(results(driver.sent)) < n_results:
        assert driver.step()


def test_stop_ends_a_running_reply_where_it_is(driver):
    ask(driver, prefill(), 1)
    already = len(results(driver.sent))
    driver.feed(request(generate(), 2))
    step_until(driver, already + 2)
    driver.feed(request(act("stop"), 3))
    driver.run()
    made = results(driver.sent)[already:]
    response = next(result["response"] for result in made if result["type"] == "response")
    assert response["finish_reason"] == "stopped"
    assert "One two three four.".startswith(response["full_text"])
    assert len(response["full_text"]) < 15
    assert [result["type"] for result in made].count("done") == 1
    assert history(driver)[1] == ("assistant", response["full_text"])


def test_stop_reaches_a_reply_that_still_waits_for_its_turn(recorder):
    driver = Driver(make_stage(recorder), PORTS, wired={"request", "played", "control"})
    ask(driver, complete(), 1)
    assert ask(driver, complete("And?"), 2) == []
    driver.feed(request(act("stop"), 3))
    driver.feed(Played(port="played", samples=1, text_end=19, session_id="a", segment_id=1, fin=True))
    kinds = {result["type"]: result for result in results(driver.run())}
    assert kinds["response"]["response"]["full_text"] == ""
    assert kinds["response"]["response"]["finish_reason"] == "stopped"
    assert "done" in kinds


def test_rollback_goes_back_to_before_the_reply_once(driver):
    ask(driver, prefill("How is"), 1)
    ask(driver, generate(streaming={"enable_speculative_snapshot": True}), 2)
    (rolled_back,) = ask(driver, act("rollback"), 3)
    assert rolled_back["result"]["success"]
    assert history(driver) == [("user", "How is")]
    (twice,) = ask(driver, act("rollback"), 4)
    assert not twice["result"]["success"]
    assert "once" in twice["result"]["reason"]
    ask(driver, prefill(" the sea?", is_last_chunk=True), 5)
    assert history(driver) == [("user", "How is the sea?")]


def test_rollback_stops_a_running_reply_first(driver):
    ask(driver, prefill(), 1)
    already = len(results(driver.sent))
    driver.feed(request(generate(streaming={"enable_speculative_snapshot": True}), 2))
    step_until(driver, already + 2)
    driver.feed(request(act("rollback"), 3))
    driver.run()
    made = results(driver.sent)[already:]
    assert [result["type"] for result in made[-2:]] == ["response", "rollback"]
    assert made[-1]["result"]["success"]
    assert history(driver) == [("user", "Count.")]


@pytest.mark.parametrize("what", ["stop", "reset", "end", "history"])
def test_an_unknown_session_is_an_error(driver, what):
    (failed,) = ask(driver, act(what, "nobody"), 1, "nobody")
    assert (failed["type"], failed["code"]) == ("error", "unknown_session")
    (failed,) = ask(driver, generate("nobody"), 2, "nobody")
    assert failed["code"] == "unknown_session"


def test_a_rollback_of_an_unknown_session_says_so(driver):
    (result,) = ask(driver, act("rollback", "nobody"), 1, "nobody")
    assert result["type"] == "rollback"
    assert result["result"] == {"success": False, "reason": "session nobody: expected one that has begun"}


def test_reset_forgets_what_was_said_and_end_the_session(driver):
    ask(driver, complete(), 1)
    assert ask(driver, act("reset"), 2)[0]["type"] == "done"
    assert history(driver) == []
    assert ask(driver, act("end"), 3)[0]["type"] == "done"
    assert ask(driver, act("history"), 4)[0]["code"] == "unknown_session"


def test_settings_hold_for_one_session_only(driver, recorder):
    settings = {"system_prompt": "Be kind.", "language": "de", "generation": {"max_new_tokens": 2}}
    (done,) = ask(driver, {"type": "session", "session_id": "a", "settings": settings}, 1)
    assert done["type"] == "done"
    (response,) = ask(driver, complete(), 2)
    assert response["response"]["full_text"] == "One two"
    assert response["response"]["finish_reason"] == "length"
    assert recorder.seen[-1] == ['Be kind. Answer in the language "de".', "Count."]
    assert {m.language for m in driver.sent if m.port == "text" and m.segment_id == 2} == {"de"}
    (other,) = ask(driver, complete(session_id="b"), 1, "b")
    assert other["response"]["full_text"] == "One two three four."


def test_a_session_that_was_set_up_answers_what_is_spoken(driver, recorder):
    ask(driver, {"type": "session", "session_id": "a", "settings": {"system_prompt": "Be kind."}}, 1)
    driver.feed(Text(port="text", text="Count.", session_id="a", segment_id=2, seq=0, fin=True))
    driver.run()
    assert recorder.seen[-1] == ["Be kind.", "Count."]


def test_speech_and_requests_of_one_session_share_one_history(driver):
    driver.feed(Text(port="text", text="Spoken.", session_id="a", segment_id=1, seq=0, fin=True))
    driver.run()
    ask(driver, complete("Typed."), 2)
    driver.feed(Text(port="text", text="Spoken again.", session_id="a", segment_id=3, seq=0, fin=True))
    driver.run()
    assert [content for role, content in history(driver) if role == "user"] == ["Spoken.", "Typed.", "Spoken again."]
    driver.feed(Control(port="control", verb="drop", session_id="a", segment_id=2))
    driver.run()
    assert [content for role, content in history(driver) if role == "user"] == ["Spoken.", "Spoken again."]


def test_sessions_are_served_side_by_side(driver):
    driver.feed(request(complete(session_id="a"), 1, "a"), request(complete(session_id="b"), 1, "b"))
    driver.run()
    spoken = [m.session_id for m in driver.sent if m.port == "text"]
    assert spoken[:4] == ["a", "b", "a", "b"]


@pytest.mark.parametrize("outputs", [{"text", "result"}, {"result"}])
@pytest.mark.parametrize("streaming", [{}, {"generate_audio": False}])
def test_a_reply_that_nobody_hears_is_made_step_by_step_too(recorder, outputs, streaming):
    recorder.said = " ".join("abcdefghij" * 10)
    driver = Driver(make_stage(recorder), PORTS, wired={"control", "request"}, wired_outputs=outputs)
    driver.feed(request(complete(streaming=streaming), 1))
    computed = 0
    while driver.step():
        assert len(recorder.extended) <= computed + 1, "a checkpoint after each token"
        computed = len(recorder.extended)
    assert computed > 90


@pytest.mark.parametrize("end", ["stop", "flush"])
def test_a_reply_that_nobody_hears_can_be_ended(driver, recorder, end):
    recorder.said = " ".join("abcdefghij" * 10)
    driver.feed(request(complete(streaming={"generate_audio": False}), 1))
    while len(recorder.extended) < 10:
        driver.step()
    flush = Control(port="control", verb="flush", session_id="a", segment_id=2, flush=True)
    driver.feed(flush if end == "flush" else request(act("stop"), 2))
    driver.run()
    assert len(recorder.extended) < 15


def test_requests_are_never_speculative(recorder, tmp_path):
    driver = Driver(make_stage(recorder, tmp_path), PORTS, wired={"control", "request"}, run="run")
    driver.feed(replace(request(complete(), 1), speculative=True))
    driver.run()
    driver = Driver(make_stage(recorder, tmp_path), PORTS, wired={"control", "request"}, run="run", restarts=1)
    assert history(driver) == [("user", "Count."), ("assistant", "One two three four.")]


def test_requests_of_one_session_are_served_in_order(driver, recorder):
    driver.feed(*(request(complete(f"{i}?"), i) for i in range(1, 5)))
    driver.run()
    assert [content for role, content in history(driver) if role == "user"] == ["1?", "2?", "3?", "4?"]


def test_a_flushed_request_is_closed_and_gets_no_result(driver):
    driver.feed(request(complete(), 1))
    while not text_of(driver.sent):
        driver.step()
    driver.feed(Control(port="control", verb="flush", session_id="a", segment_id=2, flush=True))
    assert results(driver.run()) == []
    assert ask(driver, complete("Next?"), 2)[0]["type"] == "response"


def test_a_model_that_breaks_ends_the_request_with_fin_and_error(driver):
    ask(driver, complete("Please break."), 1)
    (fin,) = [m for m in driver.sent if m.port == "result"]
    assert fin.fin
    assert "the model broke" in fin.error
    assert ask(driver, complete("Again?"), 2)[0]["response"]["success"]


@pytest.mark.parametrize(
    ("document", "code", "says"),
    [
        ("{", "bad_request", "Invalid JSON"),
        ("[]", "bad_request", "document"),
        ({"type": "sing"}, "bad_request", "'sing'"),
        ({"type": "generate"}, "bad_request", "generate.session_id: Field required"),
        (act("stop", verbose=True), "bad_request", "stop.verbose: Extra inputs are not permitted"),
        (act("reset", "b"), "bad_request", "session_id='b': the message's metadata say 'a'"),
        (prefill(""" """, role="robot"), "bad_request", "role"),
        (complete(generation={"max_new_tokens": 0}), "bad_request", "max_new_tokens"),
        (complete(generation={"max_new_tokens": 3000}), "context_full", "leaves -1000"),
        (complete("a" * 200_001), "bad_request", "200001 characters, expected at most 200000"),
        (
            {"type": "session", "session_id": "a", "settings": {"generation": {"max_new_tokens": 1995}}},
            "bad_request",
            "without max_new_tokens=1995 leaves 5",
        ),
        (
            {"type": "session", "session_id": "a", "settings": {"system_prompt": "word " * 1600}},
            "bad_request",
            "a system prompt of 8000 characters included: a context of 2000 tokens",
        ),
        (complete(omni_mode=True), "unsupported_field", "omni_mode=True: the fake model"),
        (complete(streaming={"ref_audio_data": "AAAA"}), "unsupported_field", "streaming.ref_audio_data"),
        ({"type": "session", "session_id": "a", "settings": {"voice": "joe"}}, "unsupported_field", "voice='joe'"),
    ],
)
def test_a_document_that_cannot_be_served_is_an_error_with_a_code(driver, document, code, says):
    (failed,) = ask(driver, document, 1)
    assert failed["type"] == "error"
    assert failed["code"] == code
    assert says in failed["error"]
    assert ask(driver, complete("Next?"), 2)[0]["response"]["success"]
    assert [content for role, content in history(driver) if role == "user"] == ["Next?"]


def test_finish_comes_when_all_requests_are_served(recorder):
    driver = Driver(make_stage(recorder), PORTS, wired={"request"})
    driver.feed(request(complete(), 1))
    bare = Text(port="request", text="", session_id="a", segment_id=1, finish=True)
    driver.feed(bare)
    sent = driver.run()
    assert json.loads(next(m.text for m in sent if m.port == "result"))["type"] == "response"
    assert [m.port for m in sent if m.finish] == [m.port for m in sent[-2:]]


def test_what_the_model_takes_is_told_without_beginning_a_session(driver):
    (described,) = ask(driver, act("model"), 1)
    assert described["parts"] == ["text"]
    assert described["name"]
    assert "generate_audio" in described["fields"]
    (refused,) = ask(driver, act("stop"), 2)
    assert refused["code"] == "unknown_session"
