"""A conversation whose KV cache never recomputes, never lies and can go back. Torch-free.

Everything is "hold these tokens": the history is rendered, what the rendering and the held tokens have in common at
the beginning is kept, the rest is cropped, and only the difference is computed, when it is needed. New turns,
pieces of a message, edited history, rollback and replies cut to what was heard are all the same operation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator

from dora_voice_session.capabilities import TEXT_ONLY, Capabilities
from dora_voice_session.chunks import Chunks
from dora_voice_session.context import Room, fit
from dora_voice_session.decoding import Decoding, IsEnough, IsStopped
from dora_voice_session.held_history import HeldHistory, Snapshot
from dora_voice_session.history import merged
from dora_voice_session.memory import Memory, UnlimitedMemory
from dora_voice_session.model import ChatModel
from dora_voice_session.prefix import common_prefix
from dora_voice_session.prompt import Anchor, Prompt
from dora_voice_session.refused import RefusedError
from dora_voice_session.rendering import whole_words
from dora_voice_session.reply_text import ReplyText
from dora_voice_session.room import check_room
from dora_voice_session.schema import (
    Generation,
    PrefillResult,
    SessionSettings,
    StreamingChunk,
    StreamingConfig,
    StreamingRequest,
    StreamingResponse,
    Usage,
)
from dora_voice_session.turns import Turn, Turns
from dora_voice_session.work import Work

log = logging.getLogger("dora_voice.session")


class Session(HeldHistory):
    """One conversation. Its generators may be closed at any yield, and then hold what they had computed.

    `clock` gives seconds. `turn_id` None means the last turn. What raises RefusedError has changed nothing.
    """

    def __init__(
        self,
        session_id: str,
        model: ChatModel,
        *,
        context_tokens: int,
        settings: SessionSettings | None = None,
        capabilities: Capabilities = TEXT_ONLY,
        memory: Memory | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(model, settings or SessionSettings(), capabilities)
        self.session_id = session_id
        self.usage = Usage()
        """Of the latest prefill or generation."""
        self.answered_id: int | None = None
        """The turn that the latest `generate` answers."""
        self._context_tokens = context_tokens
        self._memory = UnlimitedMemory() if memory is None else memory
        self._clock = clock

    def configure(self, settings: SessionSettings) -> None:
        """Settings from now on; a null field stays. Raises RefusedError, also if they leave no room for a message."""
        check_room(self._model, self._history.configured(settings), self._context_tokens)
        super().configure(settings)

    def snapshot(self) -> None:
        """Remembers this moment, for one rollback to it."""
        self.lose_snapshot_cache()
        is_copied = not self._model.can_crop and self._memory.spares(self, self._cached.nbytes)
        cached = self._cached.fork() if is_copied else None
        self._snapshot = Snapshot(self._history.copy(), self._prompt.copy(), cached)

    def fork(self, session_id: str) -> Session:
        """Another session with the same past; from here on the two know nothing of each other. Raises RefusedError."""
        other = Session(
            session_id,
            self._model,
            context_tokens=self._context_tokens,
            capabilities=self._capabilities,
            memory=self._memory,
            clock=self._clock,
        )
        other._history, other._prompt = self._history.copy(), self._prompt.copy()
        other._cached = self._cached.fork()
        self._memory.adopt(other)
        return other

    def prefill(
        self, request: StreamingRequest, *, new_id: int | None = None, replace: bool = False
    ) -> Work[None, PrefillResult]:
        """Adds the request's messages and computes them, with a yield after each slice. Raises RefusedError.

        Closed half-way, the messages stay said; the same request again then only goes on. `new_id` is as in `add`.
        replace: the messages take the place of the history, see `edit`. What the request asks for holds for the
        turn that it ends in.
        """
        self._capabilities.check(request)
        with self._unchanged_if_refused():
            if replace:
                self._history.clear()
                self._forget_snapshot("the history was edited since")
            self._history.request(request, is_open=not request.is_last_chunk, new_id=new_id)
            yield from self.compute()
        self._history.unfinished = None
        return PrefillResult(session_id=self.session_id, usage=self.usage)

    def fit(self) -> int:
        """Gives up the oldest turns if what was said so far doesn't fit. Returns how many. Raises RefusedError."""
        with self._unchanged_if_refused():
            dropped_turns = self._fit(self.turns.last, self.generation, self._rendering.open)
        self._crop_to_history()
        return dropped_turns

    def compute(self, *, keeps_all: bool = False) -> Generator[None, None, None]:
        """Computes what was said so far, with a yield after each slice. Raises RefusedError.

        keeps_all: it is refused, too, if turns would have to be given up for it.
        """
        with self._unchanged_if_refused():
            dropped_turns = self._fit(self.turns.last, self.generation, self._rendering.open, keeps_all=keeps_all)
            tokens = self._tokens_to_hold()
            yield from self._memory.claim(self, len(tokens))
        try:
            yield from self._prefill(tokens, dropped_turns)
        finally:
            self._memory.release(self)
            self._crop_to_history()

    def generate(
        self,
        streaming: StreamingConfig | None = None,
        generation: Generation | None = None,
        *,
        turn_id: int | None = None,
        reply_id: int | None = None,
        must_speak: bool = False,
        is_enough: IsEnough = lambda text, tokens: False,
        is_stopped: IsStopped = lambda: False,
    ) -> Work[StreamingChunk | None, StreamingResponse]:
        """Answers a turn: chunks whose deltas add up, None in between, in the end the whole response.

        Without `streaming`, and for what `generation` leaves open, the turn's request holds, then the settings.
        Closed at a yield, the reply is what was yielded. reply_id: dropping it takes the reply back. must_speak: the
        reply can't end before its first word. is_enough: told the text and how many tokens it has, says whether the
        reply may end there. is_stopped: says whether it must. Raises RefusedError.
        """
        began_s, self.usage = self._clock(), Usage()
        turn = self._turn_to_answer(turn_id)
        self.answered_id = turn.turn_id
        generation = merged(self._history.generation(turn), generation)
        streaming = streaming or self._history.streaming(turn)
        self._capabilities.check(streaming)
        with self._unchanged_if_refused():
            prompt, dropped_turns = self._prompt_for(turn, generation)
            yield from self._memory.claim(self, len(prompt.tokens) + generation.max_new_tokens)
        decoding = Decoding(
            *(self._model, self._cached, prompt.tokens, generation),
            must_speak=must_speak,
            is_enough=is_enough,
            is_stopped=is_stopped,
        )
        chunks = Chunks(self._clock)
        try:
            if streaming.enable_speculative_snapshot:
                self.snapshot()
            for _ in self._prefill(prompt.tokens, dropped_turns):
                if is_stopped():
                    break
                yield
            yield from self._reply(turn, reply_id, decoding, chunks)
        finally:
            self._memory.release(self)
            self._remember(prompt, decoding.reply)
        return StreamingResponse(
            session_id=self.session_id,
            full_text=decoding.reply.text,
            total_chunks=chunks.count,
            total_duration_ms=1000 * (self._clock() - began_s),
            finish_reason=decoding.reason,
            usage=self.usage,
        )

    def complete(
        self, request: StreamingRequest, *, new_id: int | None = None, is_stopped: IsStopped = lambda: False
    ) -> Work[StreamingChunk | None, StreamingResponse]:
        """Adds the request's messages and answers them, as `prefill` and `generate`. Raises RefusedError.

        Closed before the reply has begun, the messages stay said; the same request again then only goes on.
        """
        self._capabilities.check(request)
        if "is_last_chunk" in request.model_fields_set and not request.is_last_chunk:
            raise RefusedError("bad_request", "is_last_chunk=False: expected the whole message, it is answered at once")
        with self._unchanged_if_refused():
            self._history.request(request, is_open=False, new_id=new_id)
            return (yield from self.generate(reply_id=new_id, is_stopped=is_stopped))

    def complete_turn(self, request: StreamingRequest) -> Work[StreamingChunk | None, StreamingResponse]:
        """As `complete`, but what is refused comes back as an error."""
        try:
            return (yield from self.complete(request))
        except RefusedError as refused:
            return StreamingResponse(session_id=self.session_id, success=False, error=f"{refused.code}: {refused}")

    def _turn_to_answer(self, turn_id: int | None) -> Turn:
        turn = self.turns.find(turn_id)
        if turn is None or turn.reply is not None:
            raise RefusedError("nothing_to_answer", f"session {self.session_id}: expected a user's message first")
        return turn

    def _prompt_for(self, turn: Turn, generation: Generation) -> tuple[Prompt, int]:
        """What the model reads to answer a turn, and how many turns had to be given up for it."""
        rendering = self._rendering
        dropped_turns = self._fit(turn, generation, lambda turns: rendering.to_answer(turns, turn))
        text = rendering.to_answer(self.turns, turn)
        return Prompt(text, self._prompt.of(text)), dropped_turns

    def _fit(
        self,
        newest: Turn | None,
        generation: Generation,
        render: Callable[[Turns], str],
        *,
        keeps_all: bool = False,
    ) -> int:
        """Makes the history fit into the context. Returns how many of the oldest turns were given up for that."""
        room = Room(self._context_tokens, generation.max_new_tokens)
        fitting = fit(self.turns, newest, room, lambda turns: len(self._prompt.of(render(turns))))
        if (dropped := len(self.turns) - len(fitting)) and newest:
            if keeps_all:
                raise RefusedError("context_full", f"the oldest {dropped} turns would have to be given up")
            self._history.give_up(dropped, newest)
            log.info("session=%s: context full, gave up the oldest %d turns", self.session_id, dropped)
        return dropped

    def _prefill(self, tokens: list[int], dropped_turns: int) -> Generator[None, None, None]:
        """Holds exactly `tokens` in the end, and counts what that takes."""
        known = self._cached.ever_shared(tokens)
        self._cached.crop_to(tokens)
        reused = len(self._cached.tokens)
        # The last token may be computed again for its logits; that is no replay.
        replayed = max(0, min(known, len(tokens) - 1) - reused)
        if replayed:
            log.info("session=%s: replaying %d tokens that the cache has lost", self.session_id, replayed)

        def count() -> None:
            self.usage = Usage(
                input_tokens=len(tokens),
                reused_tokens=reused,
                computed_tokens=len(self._cached.tokens) - reused,
                replayed_tokens=replayed,
                dropped_turns=dropped_turns,
            )

        for _ in self._cached.hold(tokens) if tokens else ():
            count()
            yield
        count()

    def _reply(
        self, turn: Turn, reply_id: int | None, decoding: Decoding, chunks: Chunks
    ) -> Generator[StreamingChunk | None, None, None]:
        self._history.begin_reply(turn, reply_id)
        for delta in decoding.deltas():
            turn.reply = decoding.reply.text
            is_final = decoding.reason is not None
            yield chunks.next(delta or "", is_final=is_final) if delta or is_final else None
        if decoding.reason == "length":
            yield from decoding.hold()

    def _remember(self, prompt: Prompt, reply: ReplyText) -> None:
        """The reply to a prompt in the model's own spelling."""
        self.usage = self.usage.model_copy(update={"generated_tokens": len(reply.tokens)})
        anchors = [Anchor(len(prompt.tokens) + tokens, len(prompt.text) + chars) for tokens, chars in reply.anchors]
        self._prompt.hold(prompt.text + reply.spelled, prompt.tokens + reply.tokens, anchors)
        self._crop_to_history()

    def _tokens_to_hold(self) -> list[int]:
        """The history's tokens. A cache that can't go back doesn't take the last word of a message that may go on."""
        tokens, last = self.history_tokens, self.turns.last
        if self._model.can_crop or last is None or not last.is_open:
            return tokens
        return tokens[: common_prefix(tokens, self._prompt.of(whole_words(self._rendering.open(self.turns))))]
