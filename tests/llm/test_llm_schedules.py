"""Whatever happens in whatever order: nobody hangs, every segment ends once, every request gets its last result."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from llm.recorder import Recorder, history, make_stage, request

from dora_voice.messages import Control, Played, Text
from dora_voice.testing import Driver
from dora_voice_llm.node import PORTS

REQUESTS = ("prefill", "edit", "complete", "generate", "stop", "rollback", "reset", "history", "session")
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["say", "speculate", "guess", "reject", "commit", "flush", "drop"]), st.just(0)),
        st.tuples(st.sampled_from(["played", "over", "pause"]), st.integers(0, 20)),
        st.tuples(st.sampled_from(REQUESTS), st.booleans()),
        st.tuples(st.just("step"), st.integers(1, 12)),
        st.tuples(st.just("break"), st.integers(0, 3)),
    ),
    max_size=25,
)


class Schedule:
    """Feeds one session, and remembers what has to come of it."""

    def __init__(self, wired, folder):
        self.recorder = Recorder()
        self.driver = Driver(make_stage(self.recorder, folder, context_tokens=700), PORTS, wired=wired, run="run")
        self.segment = 0
        self.spoken: set[int] = set()
        """Segments that have to end on `text`."""
        self.requested: set[int] = set()
        """Segments that have to end on `result`."""
        self.dead: set[int] = set()

    def do(self, what, value):
        if what == "step":
            for _ in range(value):
                self.driver.step()
        elif what == "pause":
            self.driver.advance(value * 20)
        elif what == "break":
            self.recorder.breaks_in = value
        elif what in ("say", "speculate"):
            self.segment += 1
            self.spoken.add(self.segment)
            self.text("text", f"word{self.segment}.", speculative=what == "speculate")
        elif what == "guess":
            self.text("hypothesis", f"word{self.segment + 1}", segment=self.segment + 1, fin=False)
        elif what == "reject":
            self.segment += 1
            self.spoken.add(self.segment)
            self.text("text", "", rejected="noise")
        elif what in ("played", "over"):
            message = Played(port="played", samples=1, text_end=value, fin=what == "over")
            self.feed(message, self.segment)
        elif what in ("commit", "flush", "drop"):
            self.control(what)
        else:
            self.ask(what, value)

    def control(self, verb):
        if verb == "flush":
            self.dead |= set(range(self.segment + 1))
            self.segment += 1
        if verb == "drop":
            self.dead.add(self.segment)
        self.feed(Control(port="control", verb=verb, flush=verb == "flush"), self.segment)

    def ask(self, what, flag):
        self.segment += 1
        self.requested.add(self.segment)
        document = {"type": what, "session_id": "a"}
        if what in ("prefill", "edit", "complete"):
            asked = {"session_id": "a", "messages": [{"role": "user", "content": f"word{self.segment}."}]}
            document = {"type": what, "request": asked | {"streaming": {"generate_audio": flag}}}
        elif what == "generate":
            document["streaming"] = {"enable_speculative_snapshot": True, "generate_audio": flag}
        elif what == "session":
            document["settings"] = {"language": "de" if flag else "en"}
        self.driver.feed(request(document, self.segment))

    def text(self, port, text, *, segment=None, fin=True, **more):
        self.feed(Text(port=port, text=text, fin=fin, **more), segment or self.segment)

    def feed(self, message, segment_id):
        kind = type(message)
        names = [name for name in kind.__dataclass_fields__ if name not in ("session_id", "segment_id")]
        values = {name: getattr(message, name) for name in names}
        if message.port in self.driver.ports.inputs:
            self.driver.feed(kind(**values, session_id="a", segment_id=segment_id))

    def ends(self, port):
        return Counter(m.segment_id for m in self.driver.sent if m.port == port and m.fin)


@settings(max_examples=300)
@given(operations=OPERATIONS, is_heard=st.booleans())
def test_after_anything_the_next_question_is_answered_and_all_has_ended_once(tmp_path_factory, operations, is_heard):
    wired = {"text", "hypothesis", "control", "request"} | ({"played"} if is_heard else set())
    schedule = Schedule(wired, tmp_path_factory.mktemp("state"))
    driver = schedule.driver
    for what, value in operations:
        schedule.do(what, value)
    schedule.recorder.breaks_in = None
    driver.advance(300)
    schedule.control("flush")
    driver.advance(300)
    schedule.do("say", 0)
    driver.advance(300)
    question = schedule.segment
    answer = [m for m in driver.sent if m.port == "text" and m.segment_id == question]
    assert "".join(m.text for m in answer) == "One two three four."
    assert [m.error for m in answer if m.fin] == [None]
    for port, expected in (("text", schedule.spoken), ("result", schedule.requested)):
        ends = schedule.ends(port)
        assert set(ends.values()) <= {1}
        assert expected - schedule.dead <= set(ends), port
    said = " ".join(content for role, content in history(driver) if role == "user")
    assert said.endswith(f"word{question}.")
    numbers = [int(word.strip(".")[4:]) for word in said.replace(".", ". ").split()]
    assert len(numbers) == len(set(numbers)), "nothing is said twice"
    session = driver.stage._conversations.get("a")._session
    assert list(session.tokens) == session.history_tokens[: len(session.tokens)]
    assert session.cache_length == len(session.tokens)
