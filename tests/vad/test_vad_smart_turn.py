"""How an utterance sounds when it has probably ended, as a hint whether it has: scripted, and by the real model."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from vad.driving import SPEECH, hear, loud_is_speech, read, speech, stage, verbs

from dora_voice.config import SetupError
from dora_voice.testing import Driver, FakeNode, silence, tone
from dora_voice_vad import weights
from dora_voice_vad.config import Config
from dora_voice_vad.node import PORTS, build, main
from dora_voice_vad.patience import SOUNDS_UNFINISHED
from dora_voice_vad.smart_turn import SmartTurn

ROOT = Path(__file__).parents[2]


class Judge:
    """Says what it was told to, once each, and keeps what it was asked about."""

    def __init__(self, probabilities: Iterable[float | Exception]) -> None:
        self._probabilities = iter(probabilities)
        self.sounds: list[np.ndarray] = []

    def __call__(self, sound: np.ndarray) -> float:
        self.sounds.append(sound)
        if isinstance(probability := next(self._probabilities), Exception):
            raise probability
        return probability


def judged(*probabilities: float | Exception, wired: Iterable[str] = PORTS.inputs) -> tuple[Driver, Judge]:
    judge = Judge(probabilities)
    return Driver(stage(Config(end_policy="smart-turn"), loud_is_speech, judge), PORTS, wired=wired), judge


def test_a_whole_sentence_that_sounds_finished_ends_soon() -> None:
    driver, _ = judged(0.9)
    hear(driver, SPEECH, silence(256))
    read(driver, 1, "What is the capital of France?")
    assert verbs(hear(driver, silence(96))) == [("commit", 1)]


def test_a_whole_sentence_that_sounds_as_if_it_went_on_ends_late() -> None:
    driver, _ = judged(0.05)
    hear(driver, SPEECH, silence(256))
    read(driver, 1, "What is the capital of France?")
    assert verbs(hear(driver, silence(900))) == []
    assert verbs(hear(driver, silence(64))) == [("commit", 1)]


def test_half_a_sentence_ends_late_however_it_sounds() -> None:
    driver, _ = judged(0.99)
    hear(driver, SPEECH, silence(256))
    read(driver, 1, "I would like to")
    assert verbs(hear(driver, silence(900))) == []
    assert verbs(hear(driver, silence(64))) == [("commit", 1)]


@pytest.mark.parametrize(("probability", "end_silence_ms"), [(0.05, 1_200), (0.99, 700)])
def test_where_nobody_knows_the_words_the_sound_can_only_tell_that_it_goes_on(
    probability: float, end_silence_ms: int
) -> None:
    driver, _ = judged(probability, wired={"audio"})
    assert verbs(hear(driver, SPEECH, silence(end_silence_ms - 64))) == [("start", 1)]
    assert verbs(hear(driver, silence(96))) == [("commit", 1)]


def test_it_is_judged_once_at_each_soft_end_by_all_that_was_said_so_far() -> None:
    driver, judge = judged(0.05, 0.9)
    source = np.concatenate([silence(1_024), SPEECH, silence(256), SPEECH, silence(256)])
    sent = hear(driver, source)
    assert verbs(sent) == [("start", 1), ("drop", 1), ("start", 2)]
    first, second = judge.sounds
    np.testing.assert_array_equal(first, source[624 * 16 : (1_024 + 640 + 96) * 16])
    np.testing.assert_array_equal(second, source[624 * 16 : (1_024 + 640 + 256 + 640 + 96) * 16])
    # What sounded unfinished was the first half.
    read(driver, 2, "What is the capital of France?")
    assert verbs(hear(driver, silence(96))) == [("commit", 2)]


def test_of_a_long_utterance_the_last_8_s_are_judged() -> None:
    driver, judge = judged(0.9)
    source = np.concatenate([tone(10_016), silence(96)])
    hear(driver, source)
    np.testing.assert_array_equal(judge.sounds[0], source[-128_000:])


def test_the_speech_is_on_its_way_before_it_is_judged() -> None:
    fins: list[int] = []
    judge = Judge([0.9])
    driver = Driver(
        stage(Config(end_policy="smart-turn"), loud_is_speech, lambda sound: fins.append(fin()) or judge(sound)), PORTS
    )

    def fin() -> int:
        return sum(fragment.fin for fragment in speech(driver.sent, 1))

    hear(driver, SPEECH, silence(256))
    assert fins == [1]


def test_what_is_too_short_to_be_an_utterance_is_not_judged() -> None:
    driver, judge = judged()
    assert verbs(hear(driver, tone(100), silence(1_024))) == [("start", 1), ("drop", 1)]
    assert judge.sounds == []


def test_a_model_that_fails_leaves_it_to_the_words(caplog: pytest.LogCaptureFixture) -> None:
    driver, _ = judged(RuntimeError("out of memory"), 0.9)
    hear(driver, SPEECH, silence(256))
    read(driver, 1, "What is the capital of France?")
    assert verbs(hear(driver, silence(96))) == [("commit", 1)]
    assert "session=a segment=1: its sound can't be judged" in caplog.text
    assert "out of memory" in caplog.text


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DORA_VOICE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_missing_model_ends_the_node_with_one_line(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("END_POLICY", "smart-turn")
    with pytest.raises(SystemExit):
        main(FakeNode())
    assert f"the smart-turn model is not at {weights.path()}: run dora-voice-vad-weights" in caplog.text


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SetupError, match=r"onnxruntime .*: pip install 'dora-voice-vad\[smart-turn\]'"):
        build(Config(end_policy="smart-turn", smart_turn_model=str(tmp_path / "my.onnx")))


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "my.onnx").write_bytes(b"no model")
    with pytest.raises(SetupError, match=r"SMART_TURN_MODEL=.*my\.onnx can't be loaded"):
        build(Config(end_policy="smart-turn", smart_turn_model=str(tmp_path / "my.onnx")))


def test_the_model_is_taken_out_of_a_wheel_of_which_nothing_else_is_kept(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, info = tmp_path / "mirror", "pipecat_ai-1.14.0.dist-info"
    mirror.mkdir()
    with zipfile.ZipFile(mirror / "pipecat_ai-1.14.0-py3-none-any.whl", "w") as archive:
        archive.writestr(weights.MEMBER, b"a model")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: pipecat-ai\nVersion: 1.14.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(mirror))
    with pytest.raises(SystemExit, match=r"smart-turn-v3\.2-cpu\.onnx has sha256 \w+: expected 2bb026316b14"):
        weights.main()
    assert not weights.path().exists()
    monkeypatch.setattr(weights, "SHA256", hashlib.sha256(b"a model").hexdigest())
    weights.main()
    assert weights.installed().read_bytes() == b"a model"
    assert {path.name for path in empty_cache.iterdir()} == {weights.path().name, f".{weights.path().name}.lock"}


@pytest.fixture(scope="module")
def smart_turn() -> SmartTurn:
    if not weights.path().is_file():
        pytest.skip("run dora-voice-vad-weights for this test")
    return SmartTurn("")


def recorded(name: str, begin_s: float, end_s: float) -> np.ndarray:
    samples, rate_hz = soundfile.read(ROOT / f"tests/recordings/{name}.wav", dtype="float32")
    return samples[int(begin_s * rate_hz) : int(end_s * rate_hz)]


@pytest.mark.parametrize(("begin_s", "end_s"), [(1.0, 2.682), (8.682, 10.453), (16.453, 18.273)])
def test_whole_questions_sound_finished(smart_turn: SmartTurn, begin_s: float, end_s: float) -> None:
    assert smart_turn(recorded("three-questions", begin_s - 0.4, end_s + 0.1)) > 0.9


def test_a_question_that_breaks_off_sounds_unfinished(smart_turn: SmartTurn) -> None:
    can_you_tell_me_a_long = recorded("barge-in", 0.6, 2.4)
    assert smart_turn(can_you_tell_me_a_long) < SOUNDS_UNFINISHED


@pytest.mark.parametrize("padding_s", [0, 1, 4, 20])
def test_silence_before_it_changes_little_and_what_was_long_ago_nothing(
    smart_turn: SmartTurn, padding_s: float
) -> None:
    question = recorded("three-questions", 8.3, 10.553)
    assert smart_turn(np.concatenate([silence(padding_s * 1_000), question])) == pytest.approx(
        smart_turn(question), abs=1e-3
    )


def test_the_spectrogram_is_the_one_that_it_was_trained_with(smart_turn: SmartTurn) -> None:
    from transformers import WhisperFeatureExtractor

    sound = recorded("three-questions", 8, 16)
    of_transformers = WhisperFeatureExtractor(chunk_length=8)(
        sound, sampling_rate=16_000, do_normalize=True, return_tensors="np"
    )
    np.testing.assert_allclose(smart_turn.features(sound), of_transformers["input_features"], atol=1e-4)
