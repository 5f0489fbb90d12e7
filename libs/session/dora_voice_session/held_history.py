"""What was said in a session, and what is held of it: all that can be done without computing. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dora_voice_session.cached_tokens import CachedTokens
from dora_voice_session.capabilities import Capabilities
from dora_voice_session.history import History
from dora_voice_session.model import ChatModel
from dora_voice_session.prefix import common_prefix
from dora_voice_session.prompt import PromptTokens
from dora_voice_session.refused import RefusedError
from dora_voice_session.rendering import Rendering
from dora_voice_session.schema import ChatMessage, Generation, RollbackResult, SessionSettings, StreamingConfig
from dora_voice_session.turns import Turns


@dataclass(slots=True)
class Snapshot:
    """Where a rollback goes."""

    history: History
    prompt: PromptTokens
    cached: CachedTokens | None
    """A copy, of a model whose caches can't go back. Without it the tokens are computed again."""


class HeldHistory:
    """`turn_id` None means the last turn. What raises RefusedError has changed nothing."""

    def __init__(self, model: ChatModel, settings: SessionSettings, capabilities: Capabilities) -> None:
        self._model = model
        self._capabilities = capabilities
        self._history = History(settings)
        self._prompt = PromptTokens(model.tokenize)
        self._cached = CachedTokens(model)
        self._snapshot: Snapshot | str = "no snapshot was taken: expected enable_speculative_snapshot in a generate"
        """Or why there is none."""

    @property
    def turns(self) -> Turns:
        return self._history.turns

    @turns.setter
    def turns(self, turns: Turns) -> None:
        self._history.turns = turns

    @property
    def given_up(self) -> Turns:
        """The oldest turns, that had to make way for the turn `given_up_for`: they come back if that is dropped."""
        return self._history.given_up

    @property
    def given_up_for(self) -> int | None:
        return self._history.given_up_for

    @property
    def settings(self) -> SessionSettings:
        return self._history.settings

    @settings.setter
    def settings(self, settings: SessionSettings) -> None:
        self._history.settings = settings

    @property
    def generation(self) -> Generation:
        """How the last turn is answered, unless `generate` is told otherwise."""
        return self._history.generation(self.turns.last)

    @property
    def streaming(self) -> StreamingConfig:
        """How the reply to the last turn is delivered, unless `generate` is told otherwise."""
        return self._history.streaming(self.turns.last)

    @property
    def history_tokens(self) -> list[int]:
        """The token ids of everything that was said; the last message isn't closed, because it may go on."""
        return self._prompt.of(self._rendering.open(self.turns))

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token ids that are held: the beginning of `history_tokens`.

        All of them when a prefill or a reply has come to its end, but not when it was closed or stopped before. A
        model whose caches can't go back doesn't hold the last word of a message that may go on.
        """
        return tuple(self._cached.tokens)

    @property
    def logits(self) -> NDArray[np.float32] | None:
        """Of the token after those that are held, shape (vocabulary,), where they are known."""
        return self._cached.logits

    @property
    def cache_length(self) -> int:
        """How many tokens the cache itself says that it holds."""
        return len(self._cached)

    @property
    def cache_bytes(self) -> int:
        """Memory that the cache takes where it costs something."""
        return self._cached.nbytes

    @property
    def away_bytes(self) -> int:
        """Memory that the cache takes where it was evicted to."""
        return self._cached.away_bytes

    @property
    def snapshot_bytes(self) -> int:
        """Memory that the snapshot's own cache takes."""
        snapshot = self._snapshot
        return 0 if isinstance(snapshot, str) or snapshot.cached is None else snapshot.cached.nbytes

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
        self._capabilities.check_parts(messages)
        self._history.add(messages, is_open=is_open, turn_id=turn_id, new_id=new_id)

    def revise(self, messages: Sequence[ChatMessage], turn_id: int, *, is_open: bool = False) -> bool:
        """Puts a better guess in place of what was said in a turn so far. False if that was closed or answered."""
        self._capabilities.check_parts(messages)
        is_revised = self._history.revise(messages, turn_id, is_open=is_open)
        self._crop_to_history()
        return is_revised

    def edit(self, messages: Sequence[ChatMessage], *, new_id: int | None = None) -> None:
        """Replaces the history. What the two have in common at the beginning stays computed. Raises RefusedError."""
        self._capabilities.check_parts(messages)
        with self._unchanged_if_refused():
            self._history.edit(messages, new_id=new_id)
            self._forget_snapshot("the history was edited since")
            tokens = self.history_tokens
        self._cached.keep(common_prefix(self._cached.tokens, tokens))

    def configure(self, settings: SessionSettings) -> None:
        """Settings from now on; a field that is null is as it was. Raises RefusedError."""
        self._capabilities.check(settings)
        self._history.configure(settings)
        self._crop_to_history()

    def heard(self, text_end: int, turn_id: int | None = None) -> bool:
        """Cuts a reply to the whole words before the code point `text_end`. False if there is no such reply."""
        if turn_id is None and self.turns.last:
            turn_id = self.turns.last.turn_id
        is_cut = self._history.cut(turn_id, text_end)
        if turn_id is not None and not isinstance(self._snapshot, str):
            # What was not heard was not heard after a rollback, either.
            self._snapshot.history.cut(turn_id, text_end)
        self._crop_to_history()
        return is_cut

    def drop(self, turn_id: int | None = None, *, was_guess: bool = False) -> bool:
        """A turn that never happened: what was said and what was answered leave the history. False if there is none.

        So does a reply that was given this id, of whatever turn. What the context gave up for the turn comes back.
        was_guess: nobody had said it, so that it changes nothing else either.
        """
        is_dropped = self._history.drop(turn_id, was_guess=was_guess)
        if is_dropped and not was_guess:
            self._forget_snapshot("a turn was dropped since")
        self._crop_to_history()
        return is_dropped

    def reset(self) -> None:
        """Nothing was said. The settings stay."""
        self._forget_snapshot("the session was reset since")
        self._history.clear()
        self._cached.clear()

    def rollback(self) -> RollbackResult:
        """Goes back to the snapshot, once: what was said, and the settings, are as they were."""
        if isinstance(then := self._snapshot, str):
            return RollbackResult(success=False, reason=then)
        self._forget_snapshot("it was rolled back to already: a snapshot restores once")
        self._history, self._prompt = then.history, then.prompt
        if then.cached is not None:
            self._cached.become(then.cached)
        return RollbackResult(success=True, restored_position=len(self._crop_to_history()))

    # Memory

    def evict(self) -> bool:
        """Gives the cache's memory free; the tokens are computed again when they are needed. True: it can come back."""
        self._forget_snapshot("the cache was evicted since")
        return self._cached.evict()

    def lose_cache(self) -> None:
        """The cache is given up, wherever it is."""
        self._cached.lose()

    def lose_snapshot_cache(self) -> None:
        """The snapshot's own cache is given up: after a rollback the tokens are computed again."""
        if not isinstance(self._snapshot, str):
            self._snapshot.cached = None

    @contextmanager
    def _unchanged_if_refused(self) -> Iterator[None]:
        """For what is refused before anything is computed."""
        history, snapshot = self._history.copy(), self._snapshot
        try:
            yield
        except RefusedError:
            self._history, self._snapshot = history, snapshot
            raise

    def _forget_snapshot(self, why: str) -> None:
        if not isinstance(self._snapshot, str):
            self._snapshot = why

    # Tokens of the history

    @property
    def _rendering(self) -> Rendering:
        return Rendering(self._model, self.settings)

    def _crop_to_history(self) -> list[int]:
        """Returns the history's tokens. Of a history that the template refuses, nothing is held."""
        tokens: list[int] = []
        try:
            with suppress(RefusedError):
                tokens = self.history_tokens
        finally:
            self._cached.keep(common_prefix(self._cached.tokens, tokens))
        return tokens
