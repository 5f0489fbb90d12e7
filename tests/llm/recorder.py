"""An llm stage over a model that says what it is told to, and keeps the conversations that it was asked to answer."""

from __future__ import annotations

import json
from pathlib import Path

from dora_voice.messages import Text
from dora_voice_llm.fake_model import FakeModel
from dora_voice_llm.service import Service
from dora_voice_llm.stage import LlmStage
from dora_voice_session.pool import Limits
from dora_voice_session.schema import Generation, SessionSettings


class Recorder(FakeModel):
    """`seen`: for each answer, what was said up to then; `extended`: how many tokens were computed in one go."""

    def __init__(self, reply="One two three four."):
        super().__init__()
        self.said, self.seen, self.extended, self.has_broken = reply, [], [], False
        self.breaks_in: int | None = None
        """So many calls from now on, it breaks once."""

    def answer(self, user):
        return self.said

    def render(self, messages, *, add_generation_prompt=True, **switches):
        contents = [message["content"] for message in messages]
        if add_generation_prompt and self.seen[-1:] != [contents]:
            self.seen.append(contents)
        return super().render(messages, add_generation_prompt=add_generation_prompt)

    def extend(self, cache, tokens):
        if self.breaks_in is not None:
            self.breaks_in = None if self.breaks_in == 0 else self.breaks_in - 1
            if self.breaks_in is None:
                raise RuntimeError("the model broke")
        self.extended.append(len(tokens))
        logits = super().extend(cache, tokens)
        words = self.decode(cache)
        if "break" in words and words.endswith("One") and not self.has_broken:
            self.has_broken = True
            raise RuntimeError("the model broke")
        return logits


def make_stage(model, folder=Path("/nonexistent"), settings=None, **limits) -> LlmStage:
    limits = Limits(**{"context_tokens": 2000, **limits})
    settings = settings or SessionSettings(generation=Generation(max_new_tokens=500))
    return LlmStage(Service(model, "the fake model", limits, settings, folder))


def ask(driver, document, segment_id, session_id="a", *, fin=True, seq=0):
    """Sends one request, and lets everything happen. Returns its results."""
    already = len(driver.sent)
    driver.feed(request(document, segment_id, session_id, fin=fin, seq=seq))
    driver.run()
    return results(driver.sent[already:])


def request(document, segment_id, session_id="a", *, fin=True, seq=0):
    text = document if isinstance(document, str) else json.dumps(document)
    return Text(port="request", text=text, session_id=session_id, segment_id=segment_id, seq=seq, fin=fin)


def results(messages):
    return [json.loads(m.text) for m in messages if m.port == "result" and m.text]


def history(driver, session_id="a"):
    """Role and content of what was said so far."""
    (result,) = ask(driver, {"type": "history", "session_id": session_id}, 10**6 + len(driver.sent), session_id)
    return [(message["role"], message["content"]) for message in result["messages"]]
