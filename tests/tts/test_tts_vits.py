"""A model that is cut before its decoder says the same, sooner, and one that can't be cut is spoken whole."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from dora_voice.audio import Samples
from dora_voice_tts.halves import DECODER_STARTS_AT, DURATIONS_NODE, cut, halves
from dora_voice_tts.piper_voice import PiperVoice, _bundled_voice, _session
from dora_voice_tts.vits import FIRST_FRAMES, CutModel, Inputs, WholeModel, joined, windows

SAMPLES_PER_FRAME = 4
SPACE = 6


def model(reach: int = 5, speakers: int = 1, name: str = DECODER_STARTS_AT) -> onnx.ModelProto:
    """A voice as small as can be: each id is a frame, and a decoder that looks at `reach` of them on each side."""
    kernel = np.linspace(0.1, 1, 2 * reach + 1, dtype=np.float32).reshape(1, 1, -1)
    upsample = np.ones((1, 1, SAMPLES_PER_FRAME), np.float32)
    nodes = [
        helper.make_node("Cast", ["input"], ["floats"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["floats", "one"], ["frames"]),
        helper.make_node("Cos", ["floats"], ["at most 1"]),
        helper.make_node("Pow", ["at most 1", "zero"], ["1 each"]),
        helper.make_node("Ceil", ["1 each"], ["durations"], name=DURATIONS_NODE),
        helper.make_node("Conv", ["frames", "kernel"], ["seen"], name=name, pads=[reach, reach]),
        helper.make_node("ConvTranspose", ["seen", "upsample"], ["spoken"], strides=[SAMPLES_PER_FRAME]),
    ]
    inputs = [helper.make_tensor_value_info("input", onnx.TensorProto.INT64, [1, None])]
    if speakers > 1:
        inputs.append(helper.make_tensor_value_info("sid", onnx.TensorProto.INT64, [1]))
        nodes.append(helper.make_node("Cast", ["sid"], ["speaker"], to=onnx.TensorProto.FLOAT))
        nodes.append(helper.make_node("Add", ["spoken", "speaker"], ["output"]))
    else:
        nodes.append(helper.make_node("Identity", ["spoken"], ["output"]))
    outputs = [helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, [1, 1, None])]
    constants = {"kernel": kernel, "upsample": upsample, "one": np.array([1], np.int64), "zero": np.float32(0)}
    weights = [numpy_helper.from_array(value, each) for each, value in constants.items()]
    graph = helper.make_graph(nodes, "voice", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def session(made: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


def spoken(one: WholeModel | CutModel, inputs: Inputs) -> Samples:
    speech = one.speak(inputs)
    samples = np.concatenate(list(speech.pieces))
    assert len(samples) == speech.total_samples
    return samples


def ids(frames: int, **more: Any) -> Inputs:
    return {"input": np.arange(frames).reshape(1, -1) % 7} | more


@given(st.lists(st.integers(0, 400), min_size=3, max_size=3).map(sorted), st.integers(0, 30))
def test_the_windows_cover_a_clause_once_and_in_order(bounds: list[int], context: int) -> None:
    start, end, frames = bounds
    made = list(windows(start, end, frames, context))
    assert [frame for window in made for frame in range(window.start, window.end)] == list(range(start, end))
    assert all(window.seen_start == max(0, window.start - context) for window in made)
    assert all(window.seen_end == min(frames, window.end + context) for window in made)


@pytest.mark.parametrize(("reach", "context"), [(1, 10), (10, 10), (11, 20), (20, 20)])
@pytest.mark.parametrize("speaker", [{}, {"sid": np.array([3])}], ids=["one speaker", "many speakers"])
def test_in_pieces_it_makes_the_same_samples(reach: int, context: int, speaker: dict[str, Any]) -> None:
    whole = model(reach, speakers=1 + len(speaker))
    encoder, decoder = (session(half) for half in cut(whole))
    one = joined(encoder, decoder, ids(150, **speaker), SPACE)
    assert one is not None
    assert one.context == context
    for frames in (1, FIRST_FRAMES, FIRST_FRAMES + 1, 333):
        inputs = ids(frames, **speaker)
        expected = spoken(WholeModel(session(whole)), inputs)
        np.testing.assert_allclose(spoken(one, inputs), expected, rtol=1e-5)


def test_what_was_begun_before_it_was_complete_sounds_as_if_it_had_not_been() -> None:
    whole = model(reach=10)
    encoder, decoder = (session(half) for half in cut(whole))
    one = CutModel(encoder, decoder, SAMPLES_PER_FRAME, 10, SPACE)
    # Seven ids a word, the last of which is the space.
    for words in ([1], [3], [2, 4], [1, 2, 20]):
        begun, sound = None, []
        for count in words:
            made = one.begin(ids(7 * count + 5), count, begun)
            assert made is not None
            speech, begun = made
            pieces = list(speech.pieces)
            assert sum(map(len, pieces)) == speech.total_samples - begun.waiting * SAMPLES_PER_FRAME
            sound += pieces
        rest = one.speak(ids(200), begun)
        pieces = list(rest.pieces)
        assert sum(map(len, pieces)) == rest.total_samples
        expected = spoken(WholeModel(session(whole)), ids(200))
        np.testing.assert_allclose(np.concatenate([*sound, *pieces]), expected, rtol=1e-5)


def test_words_that_were_said_are_not_said_again() -> None:
    encoder, decoder = (session(half) for half in cut(model()))
    one = CutModel(encoder, decoder, SAMPLES_PER_FRAME, 10, SPACE)
    assert one.begin(ids(20), 0, None) is None
    first = one.begin(ids(20), 2, None)
    assert first is not None
    assert one.begin(ids(30), 2, first[1]) is None
    assert one.begin(ids(30), 3, first[1]) is not None


def test_two_words_that_became_one_are_said_both() -> None:
    whole = model()
    encoder, decoder = (session(half) for half in cut(whole))
    one = CutModel(encoder, decoder, SAMPLES_PER_FRAME, 10, SPACE)
    before = {"input": np.array([[*[1, 2, SPACE] * 10, 4, 5, SPACE, 3]])}
    merged = {"input": np.array([[*[1, 2, SPACE] * 10, 4, 5, 3, 3, SPACE, 1, 2]])}
    first = one.begin(before, 11, None)
    assert first is not None
    sound = np.concatenate([*first[0].pieces, *one.speak(merged, first[1]).pieces])
    with_space = {"input": np.array([[*[1, 2, SPACE] * 10, 4, 5, SPACE, 3, 3, SPACE, 1, 2]])}
    np.testing.assert_allclose(sound, spoken(WholeModel(session(whole)), with_space), rtol=1e-5)


def test_the_last_word_was_said_already() -> None:
    encoder, decoder = (session(half) for half in cut(model()))
    one = CutModel(encoder, decoder, SAMPLES_PER_FRAME, 10, SPACE)
    first = one.begin(ids(40), 5, None)
    assert first is not None
    # Only what the decoder had not seen enough of is left.
    assert one.speak(ids(34), first[1]).total_samples == first[1].waiting * SAMPLES_PER_FRAME


def test_a_decoder_that_looks_far_around_is_not_used_in_pieces() -> None:
    encoder, decoder = (session(half) for half in cut(model(reach=30)))
    assert joined(encoder, decoder, ids(150), SPACE) is None


def test_a_piece_is_made_when_it_is_asked_for() -> None:
    class Counting:
        def __init__(self, counted: onnxruntime.InferenceSession) -> None:
            self.runs, self.run_it, self.get_inputs = 0, counted.run, counted.get_inputs

        def run(self, names: Any, feed: Any) -> Any:
            self.runs += 1
            return self.run_it(names, feed)

    encoder, decoder = (Counting(session(half)) for half in cut(model()))
    speech = CutModel(encoder, decoder, SAMPLES_PER_FRAME, 10, SPACE).speak(ids(400))
    assert (encoder.runs, decoder.runs, speech.total_samples) == (1, 0, 1600)
    assert len(next(speech.pieces)) == FIRST_FRAMES * SAMPLES_PER_FRAME
    assert (encoder.runs, decoder.runs) == (1, 1)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DORA_VOICE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_model_is_cut_once(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "voice.onnx"
    onnx.save(model(), str(path))
    made = halves(path)
    before = [half.stat().st_mtime_ns for half in made]
    assert halves(path) == made
    assert [half.stat().st_mtime_ns for half in made] == before
    assert len(list(cache.iterdir())) == 1
    onnx.save(model(reach=7), str(path))
    assert halves(path) != made


def test_of_two_that_cut_it_at_once_one_is_taken(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "voice.onnx"
    onnx.save(model(), str(path))
    first: list[tuple[Path, Path]] = []

    def cut_by_another_meanwhile(whole: onnx.ModelProto) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        monkeypatch.setattr("dora_voice_tts.halves.cut", cut)
        first.append(halves(path))
        return cut(whole)

    monkeypatch.setattr("dora_voice_tts.halves.cut", cut_by_another_meanwhile)
    assert [halves(path)] == first
    assert len(list(cache.iterdir())) == 1


def test_a_model_without_that_node_can_not_be_cut(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "voice.onnx"
    onnx.save(model(name="something else"), str(path))
    with pytest.raises(ValueError, match="/dec/conv_pre/Conv"):
        halves(path)
    assert not cache.exists()


def inputs_of(voice: PiperVoice, text: str) -> Inputs:
    return voice._model_inputs(voice._phonemes(text)[0])


@pytest.fixture(scope="module")
def bundled() -> tuple[PiperVoice, Inputs]:
    voice = PiperVoice("", speed=1.0, threads=2)
    return voice, inputs_of(voice, "Once upon a time there was a little robot who lived by the sea.")


def test_the_voice_that_comes_with_the_node_is_cut_and_exact(bundled: tuple[PiperVoice, Inputs]) -> None:
    one, inputs = bundled[0]._model, bundled[1]
    assert isinstance(one, CutModel)
    frames = one.encoder.run(None, inputs)[0]
    whole = one.decoder.run(None, {one.decoder.get_inputs()[0].name: frames})[0].reshape(-1)
    pieces = list(one._pieces(frames, 0, frames.shape[2], inputs))
    assert len(pieces) > 4
    assert np.abs(np.concatenate(pieces) - whole).max() < 1e-4


def test_the_halves_make_what_the_whole_makes(bundled: tuple[PiperVoice, Inputs]) -> None:
    voice, inputs = bundled
    # Without its noise, which is drawn anew for each.
    calm = {**inputs, "scales": np.array([0, 1, 0], np.float32)}
    whole = WholeModel(_session(_bundled_voice(), threads=2))
    np.testing.assert_allclose(spoken(voice._model, calm), spoken(whole, calm), atol=1e-3)  # type: ignore[arg-type]


def test_a_voice_whose_halves_can_not_be_kept_speaks_whole_clauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "file").touch()
    monkeypatch.setenv("DORA_VOICE_CACHE", str(tmp_path / "file"))
    voice = PiperVoice("", speed=1.0, threads=2)
    assert len(list(voice.speak("Hello there.").pieces)) == 1
    (line,) = [record.message for record in caplog.records if "whole clauses" in record.message]
    assert "can't be cut" in line
