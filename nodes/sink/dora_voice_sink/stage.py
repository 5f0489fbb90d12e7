"""The sink as a stage: messages in, files and terminal lines out."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress

from dora_voice.messages import Message, Segment
from dora_voice.stage import Surroundings, Work
from dora_voice_sink.conversation import Conversation, Event, Outcome, ReplySound
from dora_voice_sink.files import Journal, ReplyFiles
from dora_voice_sink.terminal import Transcript

log = logging.getLogger("dora_voice.sink")


class SinkStage:
    def __init__(self, journal: Journal, replies: ReplyFiles) -> None:
        self._journal = journal
        self._replies = replies
        self._transcript = Transcript()
        self._is_full = False

    def started(self, surroundings: Surroundings) -> None:
        self._clock = surroundings.clock
        last = self._journal.begin(surroundings.restarts)
        self._began_s = surroundings.clock() - (last.t_s if last else 0.0)
        self._replies.begin(surroundings.restarts)
        self._conversation = Conversation(surroundings.wired)
        if last:
            self._write([Event(last.segment, "error", {"output": "sink", "error": "restarted: node sink crashed"})])

    def process(self, message: Message) -> None:
        self._write(self._conversation.take(message))

    def flushed(self, segment: Segment) -> None:
        self._write(self._conversation.flushed(segment))

    def lost(self, port: str, for_good: bool) -> None:
        if not for_good:
            self._write(self._conversation.lost(port))

    def dropped(self, segment: Segment) -> None:
        self._write(self._conversation.dropped(segment))

    def finish(self, session_id: str) -> Work:
        """The session's last message has come."""
        self._write(self._conversation.finish(session_id))
        yield None

    def ended(self, session_id: str) -> None:
        self._write(self._conversation.ended(session_id))
        self._replies.end(session_id)

    def close(self) -> None:
        for session_id in self._conversation.sessions():
            self._write(self._conversation.finish(session_id))
        with suppress(OSError):
            self._replies.close()
            self._journal.close()
        for line in self._transcript.summary():
            print(line, flush=True)

    def _write(self, outcomes: Iterable[Outcome]) -> None:
        t_s = self._clock() - self._began_s
        for outcome in outcomes:
            try:
                if not self._is_full:
                    self._save(t_s, outcome)
            except OSError as error:
                log.error("nothing is written any more: %s", error)
                self._is_full = True
            for line in self._transcript.of(t_s, outcome):
                print(line, flush=True)

    def _save(self, t_s: float, outcome: Outcome) -> None:
        if isinstance(outcome, Event):
            self._journal.write(t_s, outcome.segment, outcome.event, outcome.values)
        elif isinstance(outcome, ReplySound):
            self._replies.write(outcome.segment, outcome.samples, outcome.sample_rate)
            if outcome.fin:
                self._replies.finish(outcome.segment)
