"""What every stage sent and received in one conversation, and what must be true of it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from conversation.network import OUTSIDE
from conversation.talking import MEANT, Utterance, answer, reply_level, spoken, words
from numpy.typing import NDArray

from dora_voice.audio import EMPTY, Samples
from dora_voice.heard import heard_of
from dora_voice.messages import SPEAKER_RATE_HZ, Audio, Control, Message, Played, Text, is_bare_finish
from dora_voice.testing import SampleClock

ENDING = ("vad/speech", "stt/text", "stt/hypothesis", "llm/text", "tts/audio", "speaker/played")
"""Outputs on which every segment that lives ends with one fin."""
TICK_SAMPLES = SPEAKER_RATE_HZ // 100
"""The speaker plays so much at a time, and so long does a fade take. One may follow another."""
ALMOST_OVER_SAMPLES = SPEAKER_RATE_HZ * 13 // 100
LONGEST_PAUSE_SAMPLES = 4 * SPEAKER_RATE_HZ


class Dead:
    """Who died, as far as somebody knows: the rule of DESIGN §4, once more."""

    def __init__(self) -> None:
        self.floor = 0
        self.dropped: set[int] = set()

    def learn(self, control: Control) -> None:
        if control.verb == "flush":
            self.floor = max(self.floor, control.segment.segment_id)
        elif control.verb == "drop":
            self.dropped.add(control.segment.segment_id)

    def __contains__(self, segment_id: int) -> bool:
        return segment_id < self.floor or segment_id in self.dropped


class Record:
    """Is told of every message. `sound` is what the speaker played."""

    def __init__(self) -> None:
        self.clock = SampleClock()
        self.segments: list[int] = []
        """Those that were begun."""
        self._sent: list[tuple[float, str, Message]] = []
        self._of: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
        self.sound: list[Samples] = []
        self.moments: Counter[str] = Counter()
        self.problems: list[str] = []
        self.finished: set[str] = set()
        """Outputs on which the session's last message came."""
        self.dead = Dead()
        """By all that the vad said."""
        self._known_dead: defaultdict[str, Dead] = defaultdict(Dead)
        self._at_speaker: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
        """What the speaker learned of a segment, and when in samples: pause, resume, real, dead."""
        self._reached_speaker: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        """When how many samples of a segment came there."""
        self._cuts_at: list[int] = []
        """When the speaker learned of anything that makes a fade, in samples."""

    # What happens

    def note_sent(self, node: str, message: Message) -> None:
        output = f"{node}/{message.port}"
        if is_bare_finish(message):
            self.finished.add(output)
            return
        self._sent.append((self.clock(), output, message))
        if message.segment_id is not None:
            self._of[output, message.segment_id].append(message)
        if isinstance(message, Control):
            self.segments += [message.segment.segment_id] * (message.verb == "start")
            self.dead.learn(message)
            self._known_dead[node].learn(message)
        elif not isinstance(message, Played) and node != OUTSIDE:
            self._note_if_dead(node, output, message.segment.segment_id)
        for moment in _moments(node, message):
            self.moments[moment] += 1
        if isinstance(message, Played) and not message.fin and self._is_almost_over(message):
            self.moments["almost over"] += 1

    def note_received(self, node: str, port: str, message: Message) -> None:
        if is_bare_finish(message):
            return
        at = round(self.clock() * SPEAKER_RATE_HZ)
        if isinstance(message, Control):
            self._known_dead[node].learn(message)
            if node == "speaker":
                self._note_steered(message, at)
        elif node == "speaker" and isinstance(message, Audio):
            _, segment_id = message.segment
            self._reached_speaker[segment_id].append((at, message.samples.size))
            if not message.speculative:
                self._at_speaker[segment_id].append((at, "real"))

    def play(self, sound: Samples) -> None:
        self.sound.append(sound)

    def of(self, output: str, segment_id: int) -> list[Any]:
        """What was sent there of this segment, in order."""
        return self._of.get((output, segment_id), [])

    def _note_if_dead(self, node: str, output: str, segment_id: int) -> None:
        if segment_id in self._known_dead[node]:
            self.problems.append(f"{output} sent segment {segment_id}, which it knew to be dead")

    def _is_almost_over(self, played: Played) -> bool:
        audio = self.of("tts/audio", played.segment.segment_id)
        if not audio or not audio[-1].fin:
            return False
        return 0 < sum(m.samples.size for m in audio) - played.samples < ALMOST_OVER_SAMPLES

    def _note_steered(self, control: Control, at: int) -> None:
        if control.verb in ("pause", "resume", "flush", "drop"):
            self._cuts_at.append(at)
        if control.verb == "pause":
            # The tick in which it began counts whole.
            self._cuts_at.append(at + LONGEST_PAUSE_SAMPLES - TICK_SAMPLES)
        learned = {"pause": "pause", "resume": "resume", "commit": "real"}
        if control.verb in learned:
            self._at_speaker[control.segment.segment_id].append((at, learned[control.verb]))
        for segment_id in self.segments:
            if segment_id in self._known_dead["speaker"]:
                self._at_speaker[segment_id].append((at, "dead"))

    # What must be true

    @property
    def committed(self) -> list[int]:
        """Those that happened."""
        said = {n: {m.verb for m in self.of("vad/control", n)} for n in self.segments}
        return sorted(n for n, verbs in said.items() if "commit" in verbs and n not in self.dead.dropped)

    def user_text(self, segment_id: int) -> str:
        """What stt said that it says, once it was all said."""
        fragments = self.of("stt/text", segment_id)
        is_said = bool(fragments) and fragments[-1].fin and not fragments[-1].error and not fragments[-1].rejected
        return "".join(m.text for m in fragments) if is_said else ""

    def heard_reply(self, segment_id: int) -> str:
        """Of its reply, as the speaker reported it. A rest that has no sound counts as heard."""
        text = "".join(m.text for m in self.of("llm/text", segment_id))
        end = max((m.text_end or 0 for m in self.of("speaker/played", segment_id)), default=0)
        return text if not words(text[end:]) else heard_of(text, end)

    def history(self, until: int | None = None) -> list[tuple[str, str]]:
        """What was said and heard; until a segment's user turn. Roles alternate, as in `Turns.messages`."""
        said: list[tuple[str, str]] = []
        for segment_id in self.committed:
            if until is not None and segment_id > until:
                break
            for role, text in (("user", self.user_text(segment_id)), ("assistant", self.heard_reply(segment_id))):
                if not text.strip() or (role == "assistant" and segment_id == until):
                    continue
                if said and said[-1][0] == role:
                    said[-1] = (role, f"{said[-1][1]} {text}")
                else:
                    said.append((role, text))
        return said

    def found(self, utterances: Iterable[Utterance]) -> Iterator[str]:
        """What is wrong, whatever was said."""
        yield from self.problems
        yield from self._wrong_ends()
        yield from self._wrong_seqs()
        yield from self._wrong_replies()
        yield from self._wrong_sound()
        yield from self._lost_words(utterances)

    def _wrong_ends(self) -> Iterator[str]:
        for output in ENDING:
            for segment_id in self.segments:
                messages = self.of(output, segment_id)
                ends = sum(m.fin for m in messages)
                is_dead = segment_id in self.dead
                if ends > 1 or (ends == 0 and not is_dead):
                    yield f"{output}: segment {segment_id} ({'dead' if is_dead else 'alive'}) has {ends} fins"
                if ends and not messages[-1].fin:
                    yield f"{output}: segment {segment_id} goes on after its fin"
                yield from (f"{output}: segment {segment_id}: {m.error}" for m in messages if m.error)

    def _wrong_seqs(self) -> Iterator[str]:
        for (output, segment_id), messages in self._of.items():
            numbers = [m.seq for m in messages]
            if output != "vad/control" and numbers != list(range(len(numbers))):
                yield f"{output}: segment {segment_id} has seqs {numbers}"

    def _wrong_replies(self) -> Iterator[str]:
        """Who isn't interrupted gets their answer, whole, and hears it, whole."""
        for segment_id in self.committed:
            if segment_id in self.dead or not self.user_text(segment_id):
                continue
            reply = "".join(m.text for m in self.of("llm/text", segment_id))
            expected = answer(self.history(until=segment_id)[-1][1])
            if reply != expected:
                yield f"segment {segment_id} was answered {reply!r} instead of {expected!r}"
            synthesised = sum(m.samples.size for m in self.of("tts/audio", segment_id))
            last = self.of("speaker/played", segment_id)[-1:]
            if not synthesised or [(m.samples, m.text_end) for m in last] != [(synthesised, len(reply))]:
                heard = [(m.samples, m.text_end) for m in last]
                yield f"segment {segment_id}: heard {heard} of {synthesised} samples, {len(reply)} code points"

    def _wrong_sound(self) -> Iterator[str]:
        """Each sample is heard once at its full level, none of the dead, and nothing else but fades."""
        sound = np.concatenate([EMPTY, *self.sound])
        is_fade = sound != 0
        for segment_id in self.segments:
            at_full_level = np.flatnonzero(sound == reply_level(segment_id))
            is_fade[at_full_level] = False
            reported = max((m.samples for m in self.of("speaker/played", segment_id)), default=0)
            if len(at_full_level) != reported:
                yield f"segment {segment_id}: {len(at_full_level)} samples were heard, {reported} reported"
            yield from self._wrong_moments(segment_id, at_full_level)
        for cut in self._cuts_at:
            is_fade[max(0, cut - TICK_SAMPLES - 1) : cut + 3 * TICK_SAMPLES] = False
        if is_fade.any():
            yield f"a fade at {np.flatnonzero(is_fade)[:3]} (in samples), which nothing explains"

    def _wrong_moments(self, segment_id: int, heard: NDArray[np.intp]) -> Iterator[str]:
        """heard: when the segment is heard. It isn't before it is real, while it is held, or when it is dead."""
        learned = self._at_speaker[segment_id]
        real, dead = (next((at for at, what in learned if what == name), math.inf) for name in ("real", "dead"))
        if len(heard) and (heard[0] < real - TICK_SAMPLES or heard[-1] >= dead):
            yield f"segment {segment_id} is heard from {heard[0]} to {heard[-1]}, real from {real}, dead from {dead}"
        steered = [(at, what) for at, what in learned if what != "real"]
        for (begin, what), (end, then), (until, _) in zip(
            steered, steered[1:], [*steered[2:], (math.inf, "")], strict=False
        ):
            if what != "pause" or end - begin >= LONGEST_PAUSE_SAMPLES - TICK_SAMPLES:
                continue
            if ((begin <= heard) & (heard < end - TICK_SAMPLES)).any():
                yield f"segment {segment_id} is heard between {begin} and {end}, where it is held"
            so_far = np.count_nonzero(heard < begin)
            is_more = sum(count for at, count in self._reached_speaker[segment_id] if at <= end) > so_far > 0
            soon = end + 5 * TICK_SAMPLES
            if then == "resume" and is_more and until > soon and not ((end <= heard) & (heard < soon)).any():
                yield f"segment {segment_id} isn't heard soon after {end}, where it was resumed"

    def _lost_words(self, utterances: Iterable[Utterance]) -> Iterator[str]:
        """What was said is in the history once, or in a segment that was flushed before it was understood."""
        told = Counter(" ".join(text for role, text in self.history() if role == "user").replace("?", " ").split())
        heard_in = {segment_id: self._said_in(segment_id) for segment_id in self.segments}
        for utterance in utterances:
            times = told[str(utterance.number)] + told[f"{utterance.number}."]
            if times > 1:
                yield f"{utterance} was said {times} times"
            if utterance.kind not in MEANT or times:
                continue
            last = max((n for n, numbers in heard_in.items() if utterance.number in numbers), default=None)
            if last is None or last >= self.dead.floor:
                yield f"{utterance}, in segment {last}, is lost"

    def _said_in(self, segment_id: int) -> set[int]:
        speech = self.of("vad/speech", segment_id)
        numbers = {number for number, _, _ in spoken(np.concatenate([EMPTY, *(m.samples for m in speech)]))}
        before = next((m.continues for m in speech if m.continues is not None), None)
        return numbers | (self._said_in(before) if before is not None else set())

    # What is written down of it

    def differences(self, history: list[tuple[str, str]], lines: list[dict[str, Any]]) -> Iterator[str]:
        """history: what the llm remembers. lines: what the sink wrote."""
        expected = [(role, words(text)) for role, text in self.history()]
        remembered = [(role, words(text)) for role, text in history]
        if remembered != expected:
            yield f"the llm remembers {remembered} instead of {expected}"
        turns: dict[tuple[int, str], str] = {}
        for line in lines:
            if line["event"] == "drop":
                turns.pop((line["segment_id"], "user"), None)
                turns.pop((line["segment_id"], "assistant"), None)
            elif line["event"] == "turn":
                turn = (line["segment_id"], line["role"])
                if turn in turns:
                    yield f"the sink wrote the turn {turn} twice"
                turns[turn] = words(line.get("heard", line["text"]))
            elif line["event"] in ("gap", "error"):
                yield f"the sink wrote {line}"
        happened = {(n, "user"): words(self.user_text(n)) for n in self.committed}
        happened |= {(n, "assistant"): words(self.heard_reply(n)) for n in self.committed}
        written = {turn: text for turn, text in turns.items() if text}
        for turn in sorted(written.keys() | happened):
            if written.get(turn, "") != happened.get(turn, ""):
                yield f"the sink wrote the turn {turn} as {written.get(turn)!r} instead of {happened.get(turn)!r}"

    def __str__(self) -> str:
        """What happened, one line each, with what repeats itself left out."""
        told = [(at_s, output, message) for at_s, output, message in self._sent if not _is_dull(output, message)]
        lines = [f"{at_s * 1000:8.0f} ms  {output:15} {_described(message)}" for at_s, output, message in told]
        return "\n".join([*lines[:1], *(line for before, line in pairwise(lines) if line != before)])


def _moments(node: str, message: Message) -> Iterator[str]:
    match message:
        case Control():
            yield message.verb
        case Audio() if node == "vad":
            yield from ["soft end"] * message.fin
        case Text(port="hypothesis"):
            yield from ["guessed"] * (not message.fin)
        case Text() if node == "stt":
            yield "transcribed"
        case Text() if node == "llm":
            yield from ["first token"] * (message.seq == 0) + ["last token"] * message.fin
        case Audio() if node == "tts":
            yield from ["first audio"] * (message.seq == 0) + ["last audio"] * message.fin
        case Played():
            yield from ["heard"] * (message.seq == 0) + ["over"] * message.fin


def _is_dull(output: str, message: Message) -> bool:
    is_in_the_middle = isinstance(message, Audio) and not message.fin and message.seq != 0
    return output.startswith(OUTSIDE) or is_in_the_middle


def _described(message: Message) -> str:
    marks = [name for name in ("fin", "speculative") if getattr(message, name)]
    match message:
        case Control():
            what = message.verb if message.continues is None else f"{message.verb} (continues {message.continues})"
        case Text():
            what = repr(message.text)
        case Played():
            what = f"{message.samples} samples, text_end {message.text_end}"
        case Audio():
            what = "sound" if message.continues is None else f"sound (continues {message.continues})"
        case _:
            what = ""
    return f"segment {message.segment_id}: {' '.join([what, *marks])}"
