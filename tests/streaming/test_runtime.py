"""A whole node with a mocked one: threads, errors, stopping and ending, without a daemon."""

import logging
import threading
from dataclasses import dataclass

import pyarrow as pa
import pytest
from dora.testing import MockNode

from dora_voice.config import SetupError
from dora_voice.messages import Control, Message, Text
from dora_voice.runtime import run, serve
from dora_voice.stage import Ports, Wait
from dora_voice.testing import FakeNode, closed, event, stop

PORTS = Ports({"text": Text, "control": Control}, {"text": Text}, reply="text", ends_with=("text",))
WIRED = {"text": "stt/text", "control": "vad/control"}


@dataclass(frozen=True, slots=True)
class Config:
    pass


class Echo:
    def __init__(self) -> None:
        self.is_closed = False
        self.may_go_on = threading.Event()

    def process(self, message: Message):
        if isinstance(message, Text):
            if message.text == "block":
                yield Text(port="text", text="blocking")
                self.may_go_on.wait(30)
            if message.text == "crash":
                raise RuntimeError("told to")
            yield Text(port="text", text=message.text, fin=message.fin)

    def close(self) -> None:
        self.is_closed = True


def texts(node):
    return [(sent.value[0].as_py(), sent.metadata.get("fin"), sent.metadata.get("error")) for sent in node.sent]


def test_a_node_answers_finishes_what_it_has_and_ends_when_its_inputs_are_closed():
    node = FakeNode([event("text", "a", fin="true"), closed("text"), closed("control")], inputs=WIRED, outputs=["text"])
    node.end()
    stage = Echo()
    run(stage, PORTS, node)
    assert texts(node) == [("a", "true", None), ("", "false", None)]
    assert node.sent[-1].metadata["finish"] == "true"
    assert stage.is_closed


def test_a_mock_of_dora_itself_is_good_enough():
    node = MockNode([("text", pa.array(["hello"]))])
    run(Echo(), PORTS, node)  # pyright: ignore[reportArgumentType]
    assert [value.to_pylist() for value in node.outputs["text"]] == [["hello"], [""]]


def test_bad_messages_and_crashes_cost_one_line_each_and_the_next_good_message_is_served(caplog):
    bad = [
        event("text", pa.array([1])),
        event("text", "x", seq="x"),
        event("text", "x", segment_id=-1),
        event("control", "jump"),
        event("nobody", "x"),
    ]
    good = [event("text", "crash", segment_id="1", fin="true"), event("text", "good", segment_id="2", fin="true")]
    node = FakeNode([*bad, *good, closed("text"), closed("control")], inputs=WIRED, outputs=["text"])
    node.end()
    with caplog.at_level(logging.WARNING, "dora_voice"):
        run(Echo(), PORTS, node)
    assert len([r for r in caplog.records if "dropped a message" in r.message]) == len(bad)
    assert texts(node)[:2] == [("", "true", "RuntimeError: told to"), ("good", "true", None)]


def test_a_stop_closes_the_stage_without_waiting_for_its_work():
    class Patient:
        def __init__(self) -> None:
            self.is_closed = False
            self.may_go_on = threading.Event()

        def process(self, message: Message):
            yield Text(port="text", text="begun")
            try:
                yield Wait()
            finally:
                self.may_go_on.set()

        def close(self) -> None:
            self.is_closed = True

    node = FakeNode([event("text", "one", segment_id="1", fin="true")], inputs=WIRED, outputs=["text"])
    stage = Patient()
    runner = threading.Thread(target=run, args=(stage, PORTS, node))
    runner.start()
    node.wait_for(lambda sent: len(sent) == 1)
    node.feed(stop())
    node.end()
    runner.join(30)
    assert not runner.is_alive()
    assert stage.is_closed
    assert stage.may_go_on.is_set()


def test_inputs_that_a_stop_has_overtaken_are_still_written_down():
    class Recorder:
        def __init__(self) -> None:
            self.texts: list[str] = []

        def process(self, message: Message) -> None:
            assert isinstance(message, Text)
            self.texts.append(message.text)

    stage = Recorder()
    node = FakeNode([event("text", "a"), stop(), event("text", "b")], inputs={"text": "x/y"}, outputs=[])
    node.end()
    run(stage, Ports({"text": Text}, {}, records=True), node)
    assert stage.texts == ["a", "b"]


def test_inputs_that_are_closed_before_all_has_come_are_still_served():
    late = event("text", "late", fin="true")
    node = FakeNode([closed("text"), closed("control"), late], inputs=WIRED, outputs=["text"])
    node.end()
    run(Echo(), PORTS, node)
    assert texts(node)[0] == ("late", "true", None)


def test_a_crashed_producer_is_told_by_the_node_it_feeds():
    node = FakeNode([event("text", "half", segment_id="1", seq="0", fin="false")], inputs=WIRED, outputs=["text"])
    node.feed({"type": "NODE_RESTARTED", "id": "stt"}, closed("text"), closed("control"))
    node.end()
    run(Echo(), PORTS, node)
    assert texts(node)[:2] == [("half", "false", None), ("", "true", "restarted: node stt crashed")]


def test_a_wire_to_an_input_that_is_not_there_is_refused_at_the_start(caplog):
    with pytest.raises(SystemExit) as stopped:
        run(Echo(), PORTS, FakeNode(inputs={"sound": "a/b"}, outputs=[]))
    assert stopped.value.code == 2
    assert "wires input sound: this node expects text, control" in caplog.text


def test_a_node_that_cannot_receive_any_more_ends_with_the_error():
    class Broken(FakeNode):
        def next(self, timeout=None):
            raise RuntimeError("daemon gone")

    with pytest.raises(RuntimeError, match="daemon gone"):
        run(Echo(), PORTS, Broken(inputs=WIRED, outputs=["text"]))


def test_a_flush_comes_in_while_the_stage_blocks_and_its_late_output_is_not_sent():
    node = FakeNode([event("text", "block", segment_id="1", fin="true")], inputs=WIRED, outputs=["text"])
    stage = Echo()
    runner = threading.Thread(target=run, args=(stage, PORTS, node))
    runner.start()
    node.wait_for(lambda sent: len(sent) == 1)
    node.feed(event("control", "flush", segment_id="2", flush="true"))
    node.feed(event("text", "new", segment_id="2", fin="true"))
    node.wait_until_taken()
    node.feed(closed("text"), closed("control"))
    node.end()
    stage.may_go_on.set()
    runner.join(30)
    assert texts(node)[:2] == [("blocking", "false", None), ("new", "true", None)]


def test_outputs_that_are_not_part_of_the_dataflow_are_not_sent():
    node = FakeNode([event("text", "a", fin="true"), closed("text"), closed("control")], inputs=WIRED, outputs=[])
    node.end()
    run(Echo(), PORTS, node)
    assert node.sent == []


def test_something_missing_at_start_is_one_line_and_an_honest_exit_code(caplog):
    def build(config: Config) -> Echo:
        raise SetupError("the model isn't here: run dora-voice-llm-weights")

    with pytest.raises(SystemExit) as stopped:
        serve(build, Config, PORTS, FakeNode())
    assert stopped.value.code == 1
    assert "run dora-voice-llm-weights" in caplog.text
