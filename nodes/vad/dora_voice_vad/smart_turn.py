"""smart-turn v3: whether a turn sounds finished, judged by its last 8 s. A Whisper encoder with one output, in ONNX.

Its spectrogram is faster-whisper's: exactly that of transformers, which would bring torch and 300 MB into this node.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dora_voice.audio import Samples
from dora_voice.config import SetupError, user_path
from dora_voice_vad import weights
from dora_voice_vad.listener import JUDGED_SAMPLES


class SmartTurn:
    def __init__(self, model: str) -> None:
        """`model`: an .onnx file, or empty for the one that dora-voice-vad-weights has fetched.

        Raises SetupError if it can't be loaded.
        """
        path = user_path(model) if model else weights.installed()
        try:
            import onnxruntime
            from faster_whisper.feature_extractor import FeatureExtractor

            # More threads would take the cores from the recogniser, which begins at the same moment.
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            self._spectrogram = FeatureExtractor()
            self(np.zeros(JUDGED_SAMPLES, np.float32))
        except ImportError as error:
            install = "pip install 'dora-voice-vad[smart-turn]'"
            raise SetupError(f"the smart-turn model can't be loaded ({error}): {install}") from error
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise SetupError(f"SMART_TURN_MODEL={path} can't be loaded ({reason}): expected smart-turn v3") from error

    def __call__(self, sound: Samples) -> float:
        """The probability that the user has finished. Of a sound that is longer than 8 s, its end is judged."""
        (probability,) = self._session.run(None, {"input_features": self.features(sound)})
        return np.asarray(probability).item()

    def features(self, sound: Samples) -> NDArray[np.float32]:
        """What the model sees of it: a spectrogram, shape (1, 80, 800)."""
        last = sound[-JUDGED_SAMPLES:]
        # It was trained on windows that end with the sound, of zero mean and unit variance together with the padding.
        padded = np.pad(last, (JUDGED_SAMPLES - len(last), 0))
        normal = (padded - padded.mean()) / np.sqrt(padded.var() + 1e-7)
        return self._spectrogram(normal, padding=0)[np.newaxis]
