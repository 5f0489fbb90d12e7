"""A conversation whose KV cache never recomputes, never lies and can go back. Torch-free.

Everything is "hold these tokens": the history is rendered, what the rendering and the held tokens have in common at
the beginning is kept, the rest is cropped, and only the difference is computed, when it is needed. New turns,
pieces of a message, edited history, rollback and replies cut to what was heard are all the same operation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from dora_voice_session.cached_tokens import CachedTokens
from dora_voice_session.capabilities import Capabilities
from dora_voice_session.model import ChatModel
from dora_voice_session.prefix import common_prefix
from dora_voice_session.prompt import Anchor, PromptTokens
from dora_voice_session.refused import RefusedError
from dora_voice_session.rendering import Rendering, whole_words
from dora_voice_session.reply_text import ReplyText
from dora_voice_session.sampling import Sampler
from dora_voice_session.schema import (
    ChatMessage,
    FinishReason,
    Generation,
    PrefillResult,
    RollbackResult,
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

IsEnough = Callable[[str, int], bool]

TEXT_ONLY = Capabilities("a text model")


class Memory(Protocol):
    """Who shares out the memory for caches."""

    def claim(self, session: Session, tokens: int) -> Generator[None, None, None]:
        """Returns when `session` may hold so many tokens; until then it yields. Raises RefusedError if it never can."""
        ...

    def release(self, session: Session) -> None:
        """It computes no more for now: its cache may be evicted."""
        ...


class UnlimitedMemory:
    def claim(self, session: Session, tokens: int) -> Generator[None, None, None]:
        yield from ()

    def release(self, session: Session) -> None: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a rollback goes."""

    turns: Turns
    prompt: PromptTokens
    request: StreamingRequest | None
    cached: CachedTokens | None
    """Of a model whose caches can't go back."""


class Session:
    """One conversation. Its generators may be closed at any yield, and then hold what they had computed.

    `clock` gives seconds. `turn_id` None means the last turn.
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
        turns: Turns | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.session_id = session_id
        self.settings = settings or SessionSettings()
        self.turns = Turns() if turns is None else turns
        self.usage = Usage()
        """Of the latest prefill or generation."""
        self._model = model
        self._context_tokens = context_tokens
        self._capabilities = capabilities
        self._memory = UnlimitedMemory() if memory is None else memory
        self._clock = clock
        self._request: StreamingRequest | None = None
        """The latest one: what it asks for holds for the answer to it."""
        self._unfinished: Turn | None = None
        """Where a prefill of that request was closed."""
        self._is_system_open = False
        """A system message may go on."""
        self._prompt = PromptTokens(model.tokenize)
        self._cached = CachedTokens(model)
        self._snapshot: Snapshot | None = None
        self._no_snapshot = "no snapshot was taken: expected enable_speculative_snapshot in an earlier generate"

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token ids that are held: the beginning of `history_tokens`, all of them after a prefill."""
        return tuple(self._cached.tokens)

    @property
    def cache_length(self) -> int:
        """How many tokens the cache itself says that it holds."""
        return len(self._cached)

    @property
    def cache_bytes(self) -> int:
        """Memory that the cache takes where it costs something."""
        return self._cached.nbytes

    @property
    def history_tokens(self) -> list[int]:
        """The token ids of everything that was said; the last message isn't closed, because it may go on."""
        return self._prompt.of(self._rendering.open(self.turns))

    # What was said

    def add(
        self,
        messages: Sequence[ChatMessage],
        *,
        is_open: bool = False,
        turn_id: int | None = None,
        new_id: int | None = None,
    ) -> None:
        """Puts messages into the history (see `Turns.add`), and computes nothing. Raises RefusedError.

        A system message, allowed only as the very first, becomes the session's system prompt.
        """
        system = messages[0].text if messages and messages[0].role == "system" and not len(self.turns) else None
        spoken = messages if system is None else messages[1:]
        if any(message.role == "system" for message in spoken):
            raise RefusedError("bad_request", "role=system: expected only as the first message of a session")
        self.turns.add(spoken, is_open=is_open, turn_id=turn_id, new_id=new_id)
        if system is not None:
            begun = self.settings.system_prompt if self._is_system_open else None
            self.settings = self.settings.model_copy(update={"system_prompt": (begun or "") + system})
        self._is_system_open = is_open and not spoken

    def revise(self, messages: Sequence[ChatMessage], turn_id: int, *, is_open: bool = False) -> bool:
        """Puts a better guess in place of what was said in a turn so far. False if that was closed or answered."""
        is_revised = self.turns.revise(messages, turn_id, is_open=is_open)
        self._crop_to_history()
        return is_revised

    def edit(self, messages: Sequence[ChatMessage], *, new_id: int | None = None) -> None:
        """Replaces the history. What the two have in common at the beginning stays computed. Raises RefusedError."""
        with self._unchanged_if_refused():
            self._replace(messages, new_id)
            tokens = self.history_tokens
        self._cached.keep(common_prefix(self._cached.tokens, tokens))

    def configure(self, settings: SessionSettings) -> None:
        """Settings from now on; a field that is null is as it was. Raises RefusedError."""
        self._capabilities.check(settings)
        given = settings.model_dump(exclude_none=True, exclude={"generation"})
        if settings.generation is not None:
            given["generation"] = merged(self.settings.generation or Generation(), settings.generation)
        self.settings = self.settings.model_copy(update=given)
        self._crop_to_history()

    def heard(self, text_end: int, turn_id: int | None = None) -> bool:
        """Cuts a reply to the whole words before the code point `text_end`. False if there is no such reply."""
        is_cut = self.turns.cut(turn_id, text_end)
        self._crop_to_history()
        return is_cut

    def drop(self, turn_id: int | None = None) -> bool:
        """A turn that never happened: what was said and what was answered leave the history. False if there is none."""
        is_dropped = self.turns.drop(turn_id)
        if is_dropped:
            self._forget_snapshot("a turn was dropped since")
            self._crop_to_history()
        return is_dropped

    def reset(self) -> None:
        """Nothing was said. The settings stay."""
        self._forget_snapshot("the session was reset since")
        self.turns, self._is_system_open = Turns(), False
        self._cached.clear()

    def snapshot(self) -> None:
        """Remembers this moment, for one rollback to it."""
        cached = None if self._model.can_crop else self._cached.fork()
        self._snapshot = Snapshot(self.turns.copy(), self._prompt.copy(), self._request, cached)

    def rollback(self) -> RollbackResult:
        """Goes back to the snapshot, once."""
        if (then := self._snapshot) is None:
            return RollbackResult(success=False, reason=self._no_snapshot)
        self._forget_snapshot("it was rolled back to already: a snapshot restores once")
        self.turns, self._prompt, self._request = then.turns, then.prompt, then.request
        if then.cached is not None:
            self._cached.become(then.cached)
        return RollbackResult(success=True, restored_position=len(self._crop_to_history()))

    def fork(self, session_id: str) -> Session:
        """Another session with the same past; from here on the two know nothing of each other."""
        other = Session(
            session_id,
            self._model,
            context_tokens=self._context_tokens,
            settings=self.settings,
            capabilities=self._capabilities,
            memory=self._memory,
            turns=self.turns.copy(),
            clock=self._clock,
        )
        other._prompt, other._cached, other._request = self._prompt.copy(), self._cached.fork(), self._request
        other._unfinished = other.turns.last if self._is_unfinished else None
        other._is_system_open = self._is_system_open
        return other

    def evict(self) -> bool:
        """Gives the cache's memory free; the tokens are computed again when they are needed. True: it can come back."""
        self._forget_snapshot("the cache was evicted since")
        return self._cached.evict()

    def lose_cache(self) -> None:
        """The cache is given up, wherever it is."""
        self._cached.lose()

    # What is computed

    def prefill(
        self, request: StreamingRequest, *, new_id: int | None = None, replace: bool = False
    ) -> Work[None, PrefillResult]:
        """Adds the request's messages and computes them, with a yield after each slice. Raises RefusedError.

        Closed half-way, the messages stay said; the same request again then only goes on. `new_id` is as in `add`.
        replace: the messages take the place of the history, see `edit`.
        """
        self._capabilities.check(request)
        with self._unchanged_if_refused():
            if replace:
                self._replace(request.messages, new_id)
            elif not self._is_unfinished or request != self._request:
                self.add(request.messages, is_open=not request.is_last_chunk, new_id=new_id)
            self._request, self._unfinished = request, self.turns.last
            yield from self.compute()
        self._unfinished = None
        return PrefillResult(session_id=self.session_id, usage=self.usage)

    def compute(self) -> Generator[None, None, None]:
        """Computes what was said so far, with a yield after each slice. Raises RefusedError."""
        room = self._context_tokens - self.generation.max_new_tokens
        with self._unchanged_if_refused():
            dropped_turns = self._fit(room, lambda: self._rendering.open(self.turns), self.turns.last)
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
        must_speak: bool = False,
        is_enough: IsEnough = lambda text, tokens: False,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Work[StreamingChunk | None, StreamingResponse]:
        """Answers a turn: chunks whose deltas add up, None in between, in the end the whole response.

        Without `streaming`, and for what `generation` leaves open, the request before holds, then the settings.
        Closed at a yield, the reply is what was yielded. must_speak: the reply can't end before its first word.
        is_enough: told the text and how many tokens it has, says whether the reply may end there. is_stopped: says
        whether it must. Raises RefusedError.
        """
        generation, streaming = merged(self.generation, generation), streaming or self.streaming
        self._capabilities.check(streaming)
        turn = self._turn_to_answer(turn_id)
        began_s = self._clock()
        room = self._context_tokens - generation.max_new_tokens
        with self._unchanged_if_refused():
            dropped_turns = self._fit(room, lambda: self._rendering.to_answer(self.turns, turn), turn)
            rendering = self._rendering.to_answer(self.turns, turn)
            tokens = self._prompt.of(rendering)
            yield from self._memory.claim(self, len(tokens) + generation.max_new_tokens)
        reply, chunks, reason = ReplyText(self._model.decode, generation.stop), _Chunks(self._clock), None
        try:
            if streaming.enable_speculative_snapshot:
                self.snapshot()
            for _ in self._prefill(tokens, dropped_turns):
                if is_stopped():
                    break
                yield
            turn.reply, turn.is_open = "", False
            sampler = Sampler(generation, self._model.end_tokens)
            while (reason := _reason_to_end(reply, generation, is_enough, is_stopped)) is None:
                # As a rule one token is missing; all that others have cropped meanwhile, should they have.
                yield from self._cached.hold([*tokens, *reply.tokens])
                may_end = not must_speak or bool(reply.text.strip())
                token = sampler.choose(self._cached.known_logits, reply.tokens, may_end=may_end)
                if token in self._model.end_tokens:
                    reason = "end"
                    break
                delta = reply.add(token)
                turn.reply = reply.text
                yield chunks.next(delta) if delta else None
            delta = reply.end()
            turn.reply = reply.text
            yield chunks.next(delta, is_final=True)
            if reason == "length":
                yield from self._cached.hold([*tokens, *reply.tokens])
        finally:
            self._memory.release(self)
            self.usage = self.usage.model_copy(update={"generated_tokens": len(reply.tokens)})
            anchors = [Anchor(len(tokens) + n, len(rendering) + chars) for n, chars in reply.anchors]
            self._prompt.hold(rendering + reply.spelled, tokens + reply.tokens, anchors)
            self._crop_to_history()
        return StreamingResponse(
            session_id=self.session_id,
            full_text=reply.text,
            total_chunks=chunks.count,
            total_duration_ms=1000 * (self._clock() - began_s),
            finish_reason=reason,
            usage=self.usage,
        )

    def complete_turn(self, request: StreamingRequest) -> Work[StreamingChunk | None, StreamingResponse]:
        """Prefill and generate in one go. What is refused comes back as an error, and changes nothing."""
        try:
            with self._unchanged_if_refused():
                yield from self.prefill(request.model_copy(update={"is_last_chunk": True}))
                return (yield from self.generate())
        except RefusedError as refused:
            self._crop_to_history()
            return StreamingResponse(session_id=self.session_id, success=False, error=f"{refused.code}: {refused}")

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

        for _ in self._cached.hold(tokens):
            count()
            yield
        count()

    def _fit(self, room: int, render: Callable[[], str], newest: Turn | None) -> int:
        """Makes the history fit. Returns how many turns were given up. Raises RefusedError if even the newest can't.

        A full context loses its oldest turns until it is half full, because all that follows them is computed
        again: that should happen rarely.
        """
        tokens = len(self._prompt.of(render()))
        if tokens <= room:
            return 0
        whole, self.turns = self.turns, Turns([newest] if newest else [])
        try:
            alone = len(self._model.tokenize(render()))
        finally:
            self.turns = whole
        if newest is None or alone > room:
            raise RefusedError(
                "context_full",
                f"a message of {alone} tokens doesn't fit: a context of {self._context_tokens} tokens without "
                f"max_new_tokens={self._context_tokens - room} leaves {room}",
            )
        older = self.turns.before(newest)
        while self.turns.before(newest) and 2 * tokens > room:
            self.turns.drop_oldest()
            tokens = len(self._prompt.of(render()))
        dropped = older - self.turns.before(newest)
        log.info("session=%s: context full, gave up the oldest %d turns", self.session_id, dropped)
        return dropped

    def _turn_to_answer(self, turn_id: int | None) -> Turn:
        turn = self.turns.find(turn_id)
        if turn is None or turn.reply is not None:
            raise RefusedError("nothing_to_answer", f"session {self.session_id}: expected a user's message first")
        return turn

    @property
    def generation(self) -> Generation:
        """How the next reply is chosen, unless its own request says otherwise."""
        return merged(self.settings.generation or Generation(), self._asked("generation"))

    @property
    def streaming(self) -> StreamingConfig:
        """How the next reply is delivered, unless its own request says otherwise."""
        return self._asked("streaming") or StreamingConfig()

    def _asked(self, field: str) -> Any:
        """What the latest request says about this, if it does."""
        request = self._request
        return getattr(request, field) if request is not None and field in request.model_fields_set else None

    def _replace(self, messages: Sequence[ChatMessage], new_id: int | None) -> None:
        self.turns, self._is_system_open = Turns(), False
        self.add(messages, new_id=new_id)
        self._forget_snapshot("the history was edited since")

    @property
    def _is_unfinished(self) -> bool:
        return self._unfinished is not None and self._unfinished is self.turns.last

    @contextmanager
    def _unchanged_if_refused(self) -> Iterator[None]:
        """Puts everything back to where it was before what is refused."""
        turns, was_unfinished = self.turns.copy(), self._is_unfinished
        others = self.settings, self._request, self._is_system_open, self._snapshot, self._no_snapshot
        try:
            yield
        except RefusedError:
            self.turns, self._unfinished = turns, turns.last if was_unfinished else None
            self.settings, self._request, self._is_system_open, self._snapshot, self._no_snapshot = others
            raise

    # Tokens of the history

    def _crop_to_history(self) -> list[int]:
        """Returns the history's tokens. Of a history that the template refuses, nothing is held."""
        tokens: list[int] = []
        try:
            with suppress(RefusedError):
                tokens = self.history_tokens
        finally:
            self._cached.keep(common_prefix(self._cached.tokens, tokens))
        return tokens

    def _tokens_to_hold(self) -> list[int]:
        """The history's tokens. A cache that can't go back doesn't take the last word of a message that may go on."""
        tokens, last = self.history_tokens, self.turns.last
        if self._model.can_crop or last is None or not last.is_open:
            return tokens
        return tokens[: common_prefix(tokens, self._prompt.of(whole_words(self._rendering.open(self.turns))))]

    @property
    def _rendering(self) -> Rendering:
        switches = {name: bool(self._asked(name)) for name in self._model.template_switches}
        return Rendering(self._model, self.settings, switches)

    def _forget_snapshot(self, why: str) -> None:
        if self._snapshot is not None:
            self._snapshot, self._no_snapshot = None, why


class _Chunks:
    """Counts the chunks of a reply, and the time from one to the next."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_s = clock()
        self.count = 0

    def next(self, delta: str, *, is_final: bool = False) -> StreamingChunk:
        now_s = self._clock()
        chunk = StreamingChunk(
            chunk_index=self.count, text_delta=delta, is_final=is_final, duration_ms=1000 * (now_s - self._last_s)
        )
        self._last_s, self.count = now_s, self.count + 1
        return chunk


def merged(settings: Generation, asked: Generation | None) -> Generation:
    """The settings, but for those that were asked for."""
    given = {name: getattr(asked, name) for name in asked.model_fields_set} if asked else {}
    return settings.model_copy(update=given)


def _reason_to_end(
    reply: ReplyText, generation: Generation, is_enough: IsEnough, is_stopped: Callable[[], bool]
) -> FinishReason | None:
    if is_stopped():
        return "stopped"
    if reply.is_stopped:
        return "stop"
    is_long = len(reply.tokens) >= generation.max_new_tokens or is_enough(reply.text, len(reply.tokens))
    return "length" if is_long else None
