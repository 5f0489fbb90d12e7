"""The events of a conversation in session a, as lists of them tell stories, and what has come of them."""

from __future__ import annotations

from llm.recorder import request

from dora_voice.messages import Control, Played, Text

LONG = " ".join(f"w{i}" for i in range(100))


def say(text, segment_id, session_id="a", **more):
    return Text(port="text", text=text, session_id=session_id, segment_id=segment_id, seq=0, fin=True, **more)


def guess(text, segment_id):
    return Text(port="hypothesis", text=text, session_id="a", segment_id=segment_id, seq=0)


def control(verb, segment_id):
    return Control(port="control", verb=verb, session_id="a", segment_id=segment_id, flush=verb == "flush")


def played(segment_id, text_end, *, fin=False):
    return Played(port="played", samples=1, text_end=text_end, session_id="a", segment_id=segment_id, fin=fin)


def act(what, **more):
    return {"type": what, "session_id": "a", **more}


def asked(kind, text="Typed.", session_id="a", **more):
    messages = [{"role": "user", "content": text}]
    return {"type": kind, "request": {"session_id": session_id, "messages": messages, **more}}


def fins(driver):
    """segment → its text and error, of what has ended on `text`."""
    ended = {m.segment_id: m.error for m in driver.sent if m.port == "text" and m.fin}
    texts = {}
    for m in driver.sent:
        if m.port == "text":
            texts[m.segment_id] = texts.get(m.segment_id, "") + m.text
    return {segment_id: (texts[segment_id], error) for segment_id, error in ended.items()}


def words_sent(driver, n):
    while sum(1 for m in driver.sent if m.port == "text" and m.text) < n:
        assert driver.step()


def half_way(driver, document, segment_id):
    """Feeds a request, and stops in the middle of reading it."""
    driver.feed(request(document, segment_id))
    for _ in range(3):
        driver.step()
