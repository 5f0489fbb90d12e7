"""/ws/chat with a model that takes pictures: a tiny random one in the real dataflow, and the real ears."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from gateway.serving import ROOT, Client, Served, assistant, media, serving, talk, user
from session.tiny_vision_model import make_tiny_vision_model, picture

CAT, DOG = (media("image", base64.b64decode(picture(seed))) for seed in range(2))
FEW = {"max_new_tokens": 3}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("seeing")
    model = make_tiny_vision_model(folder / "model", "idefics3")
    with serving(folder, LLM_MODEL=str(model), LLM_DTYPE="fp32", TTS_BACKEND="fake") as served:
        yield served


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def film(folder: Path, seconds: int, *, has_sound: bool = True) -> bytes:
    """Ten frames a second, each second of another grey; with sound, the beginning of a recording."""
    path = folder / "film.mp4"
    with av.open(str(path), "w") as container:
        pictures = container.add_stream("mpeg4", rate=10)
        pictures.width, pictures.height, pictures.pix_fmt = 64, 48, "yuv420p"
        if has_sound:
            with av.open(str(ROOT / "tests/recordings/three-questions.wav")) as recording:
                sound = container.add_stream("aac", rate=16_000)
                for heard in recording.decode(audio=0):
                    if float(heard.time or 0) < seconds:
                        container.mux(sound.encode(heard))
                container.mux(sound.encode(None))
        for number in range(seconds * 10):
            grey = np.full((48, 64, 3), 20 * (number // 10), np.uint8)
            container.mux(pictures.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(pictures.encode(None))
    return path.read_bytes()


def ask(served: Served, *parts: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    async def chat() -> list[dict[str, Any]]:
        async with Client(served, "/ws/chat") as client:
            return await client.ask([user(list(parts))], generation=FEW, **fields)

    return talk(chat())


def input_tokens(answer: list[dict[str, Any]]) -> int:
    assert answer[-1]["type"] == "done", answer[-1]
    return answer[0]["input_tokens"]


def test_pictures_are_read_and_the_next_turn_computes_only_its_own_tokens(seeing: Served) -> None:
    async def chat() -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
        async with Client(seeing, "/ws/chat") as client:
            shown = user([text("What is "), CAT, text(" and "), DOG])
            first = await client.ask([shown], generation=FEW)
            history = [shown, assistant(first[-1]["text"]), user("And?")]
            second = await client.ask(history, generation=FEW)
            history[0] = user([text("What is "), DOG, text(" and "), DOG])
            return first, second, await client.ask(history, generation=FEW)

    first, second, other = talk(chat())
    assert input_tokens(first) > input_tokens(ask(seeing, text("What is  and ")))
    assert second[0]["reused_tokens"] >= first[0]["input_tokens"]
    assert input_tokens(other) == input_tokens(second)
    assert other[0]["reused_tokens"] < first[0]["input_tokens"] // 2, "another picture is not the same tokens"


def test_a_picture_is_cut_into_as_many_pieces_as_the_request_says(seeing: Served) -> None:
    one, few = (ask(seeing, CAT, image={"max_slice_nums": count}) for count in (1, 4))
    assert input_tokens(one) < input_tokens(few)


def test_a_film_is_its_pictures_in_one_piece_each_and_its_words_between_them(seeing: Served, tmp_path: Path) -> None:
    silent = ask(seeing, media("video", film(tmp_path, 3, has_sound=False)))
    spoken = ask(seeing, media("video", film(tmp_path, 3)))
    assert input_tokens(silent) == input_tokens(ask(seeing, CAT, CAT, CAT, image={"max_slice_nums": 1}))
    assert input_tokens(spoken) > input_tokens(silent) + 3, "what is said in it is read, too"
    assert input_tokens(ask(seeing, media("video", film(tmp_path, 3)), omni_mode=True)) == input_tokens(spoken)


def test_what_is_no_picture_or_film_is_refused_by_its_place(seeing: Served) -> None:
    for part in (media("image", b"no picture"), media("video", b"no film"), media("video", picture_bytes())):
        (failed,) = ask(seeing, text("See: "), part)
        assert failed["code"] == "bad_request"
        assert failed["error"].startswith("messages[0].content[1]: no ")


def picture_bytes() -> bytes:
    return base64.b64decode(CAT["data"])[:40]
