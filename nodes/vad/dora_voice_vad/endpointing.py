"""Where utterances begin and end, from one speech probability per window. Knows no model and no clock.

Positions are samples since the beginning of the stream, at 16 kHz.
"""

from __future__ import annotations

from dataclasses import dataclass, field

WINDOW_SAMPLES = 512
SPLIT_SAMPLES = 3 * 16_000
"""An utterance that gets too long is split somewhere in the last part of this length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Probabilities that begin speech and that keep it from pausing; and lengths in samples."""

    begin_probability: float = 0.5
    stay_probability: float = 0.35
    pre_roll_samples: int
    min_speech_samples: int
    soft_end_samples: int
    """Silence after which an utterance has probably ended."""
    false_alarm_samples: int
    """Silence after which too little speech was none."""
    max_utterance_samples: int


@dataclass(frozen=True, slots=True)
class Onset:
    """An utterance began; its first sample, which the pre-roll puts before the speech."""

    at: int
    may_go_on: bool = False
    """With the one before: that ended by itself, and left room for more."""
    is_rest: bool = False
    """Of the one before, which was too long and was split."""


@dataclass(frozen=True, slots=True)
class Speech:
    """The next samples of the utterance: contiguous, the first ones begin at its onset."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SoftEnd:
    """The utterance has probably ended: no `Speech` comes until `Resumed` takes that back."""

    at: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The utterance goes on after all; at its first sample after the soft end."""

    at: int


@dataclass(frozen=True, slots=True)
class HardEnd:
    """The utterance is over, and was one."""

    at: int


@dataclass(frozen=True, slots=True)
class FalseAlarm:
    """The utterance is over, and was none: too little speech."""

    at: int


Event = Onset | Speech | SoftEnd | Resumed | HardEnd | FalseAlarm


@dataclass(slots=True)
class Utterance:
    begin: int
    sent: int
    is_rest: bool = False
    is_pausing: bool = False
    is_soft_ended: bool = False
    speech_samples: int = 0
    silence_samples: int = 0
    last_part: list[float] = field(default_factory=list)
    """The probabilities of the windows among which it may be split."""


class Endpointer:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._position = 0
        self._committed_until = 0
        self._utterance: Utterance | None = None
        self._before: int | None = None
        """Where the utterance that ended last began, if another may go on with it."""

    @property
    def is_open(self) -> bool:
        """Whether an utterance began that has not ended."""
        return self._utterance is not None

    @property
    def begin(self) -> int:
        """The first sample of the open utterance."""
        return self._utterance.begin if self._utterance else self._position

    @property
    def speech_samples(self) -> int:
        """How much of the open utterance was speech."""
        return self._utterance.speech_samples if self._utterance else 0

    @property
    def oldest_needed(self) -> int:
        """No event still to come reaches further back than this sample."""
        pre_roll_from = max(0, self._position - self._limits.pre_roll_samples)
        return min(self._utterance.sent, pre_roll_from) if self._utterance else pre_roll_from

    def hear(self, probability: float, end_silence_samples: int) -> list[Event]:
        """The next window, which holds speech with this probability; so much silence is a hard end now."""
        events: list[Event] = []
        if self._utterance is None and probability >= self._limits.begin_probability:
            pre_roll_from = max(0, self._position - self._limits.pre_roll_samples)
            events += self._open(max(self._committed_until, pre_roll_from))
        self._position += WINDOW_SAMPLES
        return events + self._go_on(probability, end_silence_samples)

    def finish(self, rest_samples: int = 0) -> list[Event]:
        """The stream ended, after a rest too short for a window. An open utterance ends here."""
        self._position += rest_samples
        if self._utterance is None:
            return []
        rest = [] if self._utterance.is_soft_ended else self._say_until(self._position)
        return rest + self._end(self._position)

    def fail(self) -> None:
        """Nobody can say what this window held. An open utterance is given up where it is."""
        self._position += WINDOW_SAMPLES
        if self._utterance:
            self._committed_until = self._utterance.sent
            self._utterance, self._before = None, None

    def go_on(self) -> None:
        """The open utterance goes on with the one before: together they are no longer than one may be."""
        if self._utterance and self._before is not None:
            self._utterance.begin = self._before

    def forget(self) -> None:
        """The open utterance was none."""
        self._utterance = None

    def _open(self, begin: int, *, is_rest: bool = False, is_pausing: bool = False) -> list[Event]:
        self._utterance = Utterance(begin, sent=begin, is_rest=is_rest, is_pausing=is_pausing)
        return [Onset(begin, may_go_on=self._before is not None, is_rest=is_rest)]

    def _go_on(self, probability: float, end_silence_samples: int) -> list[Event]:
        if (utterance := self._utterance) is None:
            return []
        self._count(utterance, probability)
        events: list[Event] = []
        if utterance.is_soft_ended and not utterance.is_pausing:
            utterance.is_soft_ended = False
            events.append(Resumed(utterance.sent))
        if not utterance.is_soft_ended:
            events += self._say_until(self._split_at(utterance)) + self._soft_end(utterance)
        if self._is_over(utterance, end_silence_samples):
            rest = [] if utterance.is_soft_ended else self._say_until(self._position)
            return events + rest + self._end(self._position)
        if not utterance.is_soft_ended and self._is_too_long(utterance):
            return events + self._split(utterance, end_silence_samples)
        return events

    def _count(self, utterance: Utterance, probability: float) -> None:
        # Hysteresis: what lies between the two probabilities changes nothing.
        if probability >= self._limits.begin_probability:
            utterance.is_pausing, utterance.silence_samples = False, 0
        elif probability < self._limits.stay_probability:
            utterance.is_pausing = True
        if utterance.is_pausing:
            utterance.silence_samples += WINDOW_SAMPLES
        else:
            utterance.speech_samples += WINDOW_SAMPLES
        if self._position > utterance.begin + self._limits.max_utterance_samples - SPLIT_SAMPLES:
            utterance.last_part.append(probability)

    def _soft_end(self, utterance: Utterance) -> list[Event]:
        if utterance.silence_samples < self._limits.soft_end_samples or not self._has_enough_speech(utterance):
            return []
        rest = self._say_until(self._position)
        utterance.is_soft_ended = True
        # All of it is sent now: it can't be split before here any more.
        utterance.last_part.clear()
        return [*rest, SoftEnd(self._position)]

    def _is_over(self, utterance: Utterance, end_silence_samples: int) -> bool:
        if not self._has_enough_speech(utterance):
            return utterance.silence_samples >= self._limits.false_alarm_samples
        if not utterance.is_soft_ended:
            return False
        return utterance.silence_samples >= end_silence_samples or self._is_too_long(utterance)

    def _is_too_long(self, utterance: Utterance) -> bool:
        return self._position + WINDOW_SAMPLES - utterance.begin > self._limits.max_utterance_samples

    def _has_enough_speech(self, utterance: Utterance) -> bool:
        # The last word of an utterance that was split is no click, however short.
        return utterance.speech_samples >= (WINDOW_SAMPLES if utterance.is_rest else self._limits.min_speech_samples)

    def _split_at(self, utterance: Utterance) -> int:
        """Where the utterance would be split now: after its quietest window. What follows is held back until then."""
        return self._position - WINDOW_SAMPLES * len(_after_quietest(utterance.last_part))

    def _split(self, utterance: Utterance, end_silence_samples: int) -> list[Event]:
        """Ends the utterance at its quietest point; what was heard since then begins the next."""
        position, heard_since = self._split_at(utterance), _after_quietest(utterance.last_part)
        is_pausing = min(utterance.last_part, default=0) < self._limits.stay_probability
        events = self._end(position)
        self._position, self._before = position, None
        events += self._open(position, is_rest=True, is_pausing=is_pausing)
        for probability in heard_since:
            events += self.hear(probability, end_silence_samples)
        return events

    def _say_until(self, position: int) -> list[Event]:
        utterance = self._utterance
        if utterance is None or position <= utterance.sent:
            return []
        begin, utterance.sent = utterance.sent, position
        return [Speech(begin, position)]

    def _end(self, position: int) -> list[Event]:
        utterance, self._utterance = self._utterance, None
        if utterance is None or not self._has_enough_speech(utterance):
            return [FalseAlarm(position)]
        self._committed_until = utterance.sent
        is_short = position - utterance.begin <= self._limits.max_utterance_samples // 2
        self._before = utterance.begin if is_short else None
        return [HardEnd(position)]


def _after_quietest(probabilities: list[float]) -> list[float]:
    """What follows the least, and of equals the last, of them."""
    following = range(len(probabilities))
    quietest = min(following, key=lambda i: (probabilities[i], -i), default=-1)
    return probabilities[quietest + 1 :]
