"""One reply, token by token, until something ends it."""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
from numpy.typing import NDArray

from dora_voice_session.cached_tokens import CachedTokens
from dora_voice_session.model import ChatModel
from dora_voice_session.reply_text import ReplyText
from dora_voice_session.sampling import Sampler
from dora_voice_session.schema import FinishReason, Generation
from dora_voice_session.work import Work

IsEnough = Callable[[str, int], bool]
"""Told the text of a reply and how many tokens it has, says whether it may end there."""
IsStopped = Callable[[], bool]
"""Says whether a reply must end."""


class Decoding:
    """`prompt` are the tokens before the reply. must_speak: it can't end before its first word."""

    def __init__(
        self,
        model: ChatModel,
        cached: CachedTokens,
        prompt: list[int],
        generation: Generation,
        *,
        must_speak: bool,
        is_enough: IsEnough,
        is_stopped: IsStopped,
    ) -> None:
        self.prompt = prompt
        self.reply = ReplyText(model.decode, generation.stop)
        self.reason: FinishReason | None = None
        """Why it ended."""
        self._cached = cached
        self._end_tokens = model.end_tokens
        self._sampler = Sampler(generation, model.end_tokens)
        self._most_tokens = generation.max_new_tokens
        self._must_speak = must_speak
        self._is_enough = is_enough
        self._is_stopped = is_stopped

    def deltas(self) -> Generator[str | None, None, None]:
        """Text of the reply, as far as it is certain; empty or None in between."""
        while (reason := self._reason_to_end()) is None:
            logits = yield from self.hold()
            may_end = not self._must_speak or bool(self.reply.text.strip())
            token = self._sampler.choose(logits, self.reply.tokens, may_end=may_end)
            if token in self._end_tokens:
                reason = "end"
                break
            yield self.reply.add(token)
        self.reason = reason
        yield self.reply.end()

    def hold(self) -> Work[None, NDArray[np.float32]]:
        """Holds all so far. As a rule one token is missing; all that others have cropped meanwhile, should they have.

        Returns the logits of the next token.
        """
        return (yield from self._cached.hold([*self.prompt, *self.reply.tokens]))

    def _reason_to_end(self) -> FinishReason | None:
        if self._is_stopped():
            return "stopped"
        if self.reply.is_stopped:
            return "stop"
        tokens = len(self.reply.tokens)
        is_long = tokens >= self._most_tokens or self._is_enough(self.reply.text, tokens)
        return "length" if is_long else None
