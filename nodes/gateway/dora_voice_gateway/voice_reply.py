"""What is known of a reply of a live conversation: what of it was sent, what is still to come, what was heard."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Reply:
    """To what was said in one segment: what was sent of it, and what was heard. Samples are at 24 kHz."""

    is_typed: bool = False
    """Its text comes as results of a request."""
    is_spoken: bool = True
    is_committed: bool = False
    is_forgotten: bool = False
    """The vad crashed before it said what becomes of it."""
    lost_with: str | None = None
    """The node that crashed with something of it, before the commit."""
    is_understood: bool = False
    """What was said has been written down."""
    is_written: bool = False
    """Its text is complete, or has failed."""
    is_sounded: bool = False
    """And its sound."""
    committed_s: float | None = None
    """Since when its first sound is waited for."""
    sent_samples: int = 0
    heard_samples: int = 0
    heard_end: int = 0
    """In code points of its text."""
    is_over: bool = False
    """Nothing more of it is heard."""
    _unheard: deque[tuple[int, int]] = field(default_factory=deque)
    """Where pieces end that were sent: in samples, and in the text."""

    def sent(self, samples: int, text_end: int) -> None:
        self.sent_samples += samples
        if not self.is_over:
            self._unheard.append((self.sent_samples, text_end))

    def heard(self, samples: int) -> None:
        """So many of them, at least."""
        self.heard_samples = max(self.heard_samples, samples)
        while self._unheard and self._unheard[0][0] <= self.heard_samples:
            _, self.heard_end = self._unheard.popleft()

    def end(self) -> None:
        self.is_over = True
        self._unheard.clear()

    @property
    def needs(self) -> list[str]:
        """The nodes that something of it is still to come from."""
        missing = {
            "stt": not self.is_understood,
            "llm": not self.is_written,
            "tts": self.is_spoken and not self.is_sounded,
        }
        return [who for who, is_missing in missing.items() if is_missing and not self.is_over]
