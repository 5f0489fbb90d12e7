"""The settings of dora-voice-vad, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from dora_voice.config import ConfigError, setting
from dora_voice.messages import SOURCE_RATE_HZ
from dora_voice_vad.endpointing import Limits
from dora_voice_vad.patience import FixedSilence, Patience, SentenceAware
from dora_voice_vad.turn_taking import Rules

FALSE_ALARM_MS = 320
VERDICT_MS = 2000


@dataclass(frozen=True, slots=True)
class Config:
    threshold: float = setting(0.5, "speech probability at which speech begins", minimum=0.2, maximum=0.95)
    pre_roll_ms: int = setting(400, "sound before the onset that belongs to the segment", minimum=300, maximum=2000)
    min_speech_ms: int = setting(250, "an utterance with less speech is dropped", minimum=32, maximum=2000)
    barge_in_ms: int = setting(1000, "with this much speech an utterance interrupts", minimum=32, maximum=5000)
    backchannels: str = setting("", "what interrupts nothing, separated by |; empty: a list for the language")
    speculate: bool = setting(True, "begins to answer at the soft end of an utterance")
    soft_end_ms: int = setting(96, "silence after which an utterance has probably ended", minimum=64, maximum=1000)
    end_policy: Literal["sentence", "smart-turn", "silence"] = "sentence"
    smart_turn_model: str = setting("", "another .onnx file, or empty for what dora-voice-vad-weights has fetched")
    end_silence_ms: int = setting(
        700, "silence that ends an utterance, where no more is known", minimum=100, maximum=5000
    )
    finished_silence_ms: int = setting(350, "silence that ends a finished sentence", minimum=100, maximum=5000)
    unfinished_silence_ms: int = setting(1200, "silence that ends an unfinished sentence", minimum=100, maximum=5000)
    reopen_ms: int = setting(700, "speech so soon after a turn's end goes on with it", minimum=0, maximum=5000)
    reopen_heard_ms: int = setting(500, "unless more of its reply was heard", minimum=0, maximum=5000)
    stall_ms: int = setting(2000, "without sound for this time an utterance ends", minimum=100)
    max_utterance_s: int = setting(30, "a longer utterance is split at its quietest point", minimum=10, maximum=30)
    sessions: int = setting(32, "sessions at a time; one more ends the one not heard for longest", minimum=1)

    def __post_init__(self) -> None:
        if not self.looks_at_sentences:
            why = "END_POLICY=silence" if self.end_policy == "silence" else "SPECULATE=false"
            self._refuse_changed("finished_silence_ms", "unfinished_silence_ms", why=why)
        if not self.speculate:
            self._refuse_changed("soft_end_ms", why="SPECULATE=false")
            if self.judges_sound:
                raise ConfigError("END_POLICY=smart-turn has no effect with SPECULATE=false: unset one of them")
        if not self.judges_sound:
            self._refuse_changed("smart_turn_model", why=f"END_POLICY={self.end_policy}")
        if self.barge_in_ms < self.min_speech_ms:
            raise ConfigError(f"BARGE_IN_MS={self.barge_in_ms}: expected at least MIN_SPEECH_MS={self.min_speech_ms}")

    @property
    def looks_at_sentences(self) -> bool:
        """Before the soft end nobody says what a sentence is like."""
        return self.end_policy != "silence" and self.speculate

    @property
    def judges_sound(self) -> bool:
        return self.end_policy == "smart-turn"

    @property
    def limits(self) -> Limits:
        return Limits(
            begin_probability=self.threshold,
            stay_probability=self.threshold - 0.15,
            pre_roll_samples=_samples(self.pre_roll_ms),
            min_speech_samples=_samples(self.min_speech_ms),
            soft_end_samples=_samples(self.soft_end_ms if self.speculate else self.end_silence_ms),
            false_alarm_samples=_samples(FALSE_ALARM_MS),
            max_utterance_samples=self.max_utterance_s * SOURCE_RATE_HZ,
        )

    def rules(self, knows_text: bool) -> Rules:
        """knows_text: the dataflow tells what is said."""
        return Rules(
            patience=self._patience(),
            min_speech_ms=self.min_speech_ms,
            barge_in_ms=self.barge_in_ms,
            verdict_ms=VERDICT_MS,
            reopen_ms=self.reopen_ms,
            reopen_heard_ms=self.reopen_heard_ms,
            knows_text=knows_text,
        )

    def _patience(self) -> Patience:
        if not self.looks_at_sentences:
            return FixedSilence(self.end_silence_ms)
        return SentenceAware(self.finished_silence_ms, self.end_silence_ms, self.unfinished_silence_ms)

    def _refuse_changed(self, *names: str, why: str) -> None:
        defaults = {field.name: field.default for field in fields(self)}
        for name in names:
            if getattr(self, name) != defaults[name]:
                raise ConfigError(f"{name.upper()}={getattr(self, name)} has no effect with {why}: unset one of them")


def _samples(ms: int) -> int:
    return ms * SOURCE_RATE_HZ // 1000
