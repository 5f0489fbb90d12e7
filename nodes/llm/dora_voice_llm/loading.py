"""Replies of a language model. Each session keeps its KV cache: a turn computes only what is new."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from dora_voice.config import SetupError, user_path
from dora_voice_llm import weights
from dora_voice_llm.decoding import ReplyText, is_long_enough, next_token
from dora_voice_llm.history import History, Turn
from dora_voice_llm.prompt import PromptTokens
from dora_voice_session import hf_model
from dora_voice_session.session import Model, Session

log = logging.getLogger("dora_voice.llm")


class ChatModel(Model, Protocol):
    """A model with its text side, see `dora_voice_session.hf_model.HfModel`."""

    end_tokens: frozenset[int]
    special_texts: tuple[str, ...]

    def render(self, messages: Sequence[Mapping[str, str]]) -> str: ...
    def tokenize(self, text: str) -> list[int]: ...
    def decode(self, tokens: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """In tokens. The context holds the prompt and the reply to it."""

    context_tokens: int
    reply_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return self.context_tokens - self.reply_tokens


@dataclass(frozen=True, slots=True)
class Cached:
    """What is kept of one session between two turns."""

    session: Session
    prompt: PromptTokens


class TransformersBackend:
    def __init__(self, model: ChatModel, system_prompt: str, limits: Limits, name: str = "model") -> None:
        self.name = name
        self._model = model
        self._system_prompt = system_prompt
        self._limits = limits
        self._cached: dict[str, Cached] = {}

    def reply(self, session_id: str, history: History, turn: Turn) -> Generator[str | None, None, None]:
        cached = self._cached.setdefault(session_id, Cached(Session(self._model), PromptTokens(self._model.tokenize)))
        rendering, tokens = self._fit(session_id, history, turn, cached.prompt)
        cached.prompt.hold(rendering, tokens)
        session, reply = cached.session, ReplyText(self._model.decode)
        try:
            logits = yield from session.prefill(tokens)
            while not is_long_enough(reply.text, len(reply.tokens), self._limits.reply_tokens):
                # A reply says something: it can't end before its first word.
                token = next_token(logits, reply.tokens, () if reply.text.strip() else self._model.end_tokens)
                if token in self._model.end_tokens:
                    break
                yield reply.add(token)
                logits = session.append(token)
        finally:
            cached.prompt.hold(rendering + reply.text, tokens + reply.tokens[: reply.whole_tokens])
            log.info(
                "turn session=%s segment=%d prefilled=%d reused=%d generated=%d",
                *(session_id, turn.segment_id, session.computed, session.kept, len(reply.tokens)),
            )

    def forget(self, session_id: str) -> None:
        self._cached.pop(session_id, None)

    def _fit(self, session_id: str, history: History, turn: Turn, prompt: PromptTokens) -> tuple[str, list[int]]:
        """The prompt as text and as tokens. Raises ValueError if even the turn alone is too long.

        A context that is full loses its oldest turns until it is half full: all that follows them is
        computed again, which should be rare.
        """
        rendering = self._render(history.messages(turn))
        tokens = prompt.of(rendering)
        if len(tokens) <= self._limits.prompt_tokens:
            return rendering, tokens
        alone = len(self._model.tokenize(self._render([{"role": "user", "content": turn.user}])))
        if alone > self._limits.prompt_tokens:
            raise ValueError(
                f"a message of {alone} tokens doesn't fit: CONTEXT_TOKENS={self._limits.context_tokens} and "
                f"MAX_REPLY_TOKENS={self._limits.reply_tokens} leave {self._limits.prompt_tokens}"
            )
        older = len(history.before(turn))
        while history.before(turn) and 2 * len(tokens) > self._limits.prompt_tokens:
            history.forget_oldest()
            rendering = self._render(history.messages(turn))
            tokens = prompt.of(rendering)
        log.info("session=%s: context full, forgot the oldest %d turns", session_id, older - len(history.before(turn)))
        return rendering, tokens

    def _render(self, messages: Sequence[Mapping[str, str]]) -> str:
        plain = [{**message, "content": self._plain(message["content"])} for message in messages]
        return self._model.render([{"role": "system", "content": self._system_prompt}, *plain])

    def _plain(self, text: str) -> str:
        """Without spellings of control tokens: nobody ends a turn from within it."""
        for special in self._model.special_texts:
            text = text.replace(special, " ")
        return text


def load(model: str, dtype: hf_model.Dtype, threads: int, system_prompt: str, limits: Limits) -> TransformersBackend:
    """Loads and warms the model that MODEL names. Raises SetupError if it can't be had or can't hold a chat."""
    source = _source(model)
    try:
        loaded = hf_model.load(str(source), dtype, threads)
        loaded.render([{"role": "system", "content": system_prompt}, {"role": "user", "content": "Hello."}])
    except Exception as error:
        raise SetupError(f"MODEL={model or source}: can't be used: {type(error).__name__}: {error}") from error
    limits = replace(limits, context_tokens=min(limits.context_tokens, loaded.most_positions or limits.context_tokens))
    if limits.prompt_tokens < limits.reply_tokens:
        raise SetupError(
            f"MAX_REPLY_TOKENS={limits.reply_tokens}: expected at most half of the context "
            f"of {limits.context_tokens} tokens"
        )
    name = f"{Path(source).name} ({dtype}, {threads} threads, {limits.context_tokens} tokens of context)"
    return TransformersBackend(loaded, system_prompt, limits, name)


def _source(model: str) -> Path | str:
    """The folder or hub id to load. Raises SetupError for a folder that isn't there."""
    if not model:
        return weights.installed()
    if (folder := user_path(model)).is_dir():
        return folder
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise SetupError(f"MODEL={model}: no such folder: expected a local folder or a hub id such as owner/name")
    return model
