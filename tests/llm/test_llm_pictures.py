"""The llm node with a model that takes pictures, and with one that doesn't: a tiny one each, from a folder."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from llm.recorder import ask, history
from session.tiny_model import make_tiny_model
from session.tiny_vision_model import make_tiny_vision_model, picture

from dora_voice.config import SetupError
from dora_voice.testing import Driver
from dora_voice_llm.config import Config
from dora_voice_llm.node import PORTS
from dora_voice_llm.service import build_service
from dora_voice_llm.stage import LlmStage

CAT, DOG = ({"type": "image", "data": picture(seed)} for seed in range(2))
SETTINGS = {"dtype": "fp32", "device": "cpu", "threads": 1, "max_reply_tokens": 6, "length_penalty": 10.0}


def config(folder, **settings):
    return Config(model=str(folder), **SETTINGS, **settings)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    return build_service(config(make_tiny_vision_model(tmp_path_factory.mktemp("tiny-vlm"), "idefics3")))


@pytest.fixture(scope="module")
def reading(tmp_path_factory):
    return build_service(config(make_tiny_model(tmp_path_factory.mktemp("tiny-llm"))))


def driver_of(service, **surroundings):
    return Driver(LlmStage(service), PORTS, wired={"text", "control", "request"}, **surroundings)


def complete(*content, kind="complete", **more):
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    message = {"role": "user", "content": parts}
    return {"type": kind, "request": {"session_id": "a", "messages": [message], **more}}


def test_a_request_with_pictures_is_answered_and_the_next_reads_only_what_is_new(seeing):
    driver = driver_of(seeing)
    (first,) = ask(driver, complete("What is ", CAT, " and ", DOG), 1)
    assert first["type"] == "response"
    assert first["response"]["success"]
    (second,) = ask(driver, complete("And?"), 2)
    usage = second["response"]["usage"]
    assert usage["reused_tokens"] >= first["response"]["usage"]["input_tokens"]
    assert usage["replayed_tokens"] == 0


def test_pictures_are_part_of_the_history_as_they_were_shown(seeing):
    driver = driver_of(seeing)
    ask(driver, complete("Look: ", CAT, kind="prefill", is_last_chunk=True, image={"max_slice_nums": 1}), 1)
    content = [{"type": "text", "text": "Look: "}, {**CAT, "max_slice_nums": 1}]
    assert history(driver) == [("user", content)]
    (again,) = ask(driver, complete(*content, kind="edit"), 2)
    assert again["type"] == "prefilled"


def test_pieces_are_what_the_request_says(seeing):
    used = []
    for segment_id, most in enumerate((1, 4), 1):
        driver = driver_of(seeing)
        (response,) = ask(driver, complete(CAT, image={"max_slice_nums": most}), segment_id)
        used.append(response["response"]["usage"]["input_tokens"])
    assert used[0] < used[1]


@pytest.mark.parametrize(
    ("content", "code", "error"),
    [
        (
            ["a", {**CAT, "type": "video"}],
            "unsupported_part",
            "messages[0].content[1]: {} takes image, text, not video",
        ),
        ([{**CAT, "type": "audio"}], "unsupported_part", "messages[0].content[0]: {} takes image, text, not audio"),
        (
            ["a", {"type": "image", "data": "aGk="}],
            "bad_request",
            "messages[0].content[1]: no picture: expected a file",
        ),
    ],
)
def test_what_cannot_be_seen_is_refused_with_its_place_and_changes_nothing(seeing, content, code, error):
    driver = driver_of(seeing)
    ask(driver, complete(CAT), 1)
    before = history(driver)
    (failed,) = ask(driver, complete(*content), 2)
    assert (failed["type"], failed["code"]) == ("error", code)
    assert failed["error"].startswith(error.format(seeing.name))
    assert history(driver) == before


def test_a_model_for_text_says_which_part_it_does_not_take(reading):
    (failed,) = ask(driver_of(reading), complete("Look: ", CAT), 1)
    assert failed["code"] == "unsupported_part"
    assert failed["error"] == f"messages[0].content[1]: {reading.name} takes text, not image"
    assert reading.name.startswith("tiny-llm")


def test_what_is_spoken_after_a_picture_is_answered_with_it(seeing):
    """As when a client shows what the camera sees, and the user asks."""
    driver = driver_of(seeing)
    ask(driver, complete(CAT, kind="prefill", is_last_chunk=True), 1)
    (asked,) = ask(driver, complete("What is it?"), 2)
    assert asked["response"]["usage"]["reused_tokens"] > 0
    assert history(driver)[0] == ("user", [CAT, {"type": "text", "text": " What is it?"}])


def test_a_node_that_died_still_knows_its_pictures(seeing, tmp_path):
    service = replace(seeing, history_folder=tmp_path)
    driver = driver_of(service, run="r")
    ask(driver, complete("Look: ", CAT, image={"max_slice_nums": 1}), 1)
    known = history(driver)
    assert known[0][1][1] == {**CAT, "max_slice_nums": 1}
    again = driver_of(service, run="r", restarts=1)
    assert history(again) == known
    (response,) = ask(again, complete("And?"), 2)
    assert response["response"]["success"]


def test_a_model_that_sees_otherwise_is_no_model_for_the_node(tmp_path, monkeypatch):
    folder = make_tiny_vision_model(tmp_path, "idefics3")
    document = json.loads((folder / "processor_config.json").read_text())
    (folder / "processor_config.json").write_text(json.dumps(document | {"image_seq_len": 5}))
    with pytest.raises(SetupError, match=f"MODEL={folder} can't be used .* 5"):
        build_service(config(folder))
