"""Nobody says anything for a long time: the gateway is still there."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.serving import FAKES, ROOT, Client, serving, talk, user

SOON = {"DORA_FINISH_DRAIN_GRACE_SECS": "2"}
"""So soon dora takes a silent dataflow for finished, instead of after two minutes."""


def test_a_dataflow_in_which_nobody_speaks_goes_on(tmp_path: Path) -> None:
    async def chat() -> str:
        async with Client(served, "/ws/chat") as client:
            return (await client.ask([user("Hello.")]))[-1]["text"]

    forgetful = tmp_path / "forgetful"
    forgetful.mkdir()
    (forgetful / "nodes").symlink_to(ROOT / "nodes")
    dataflow, count = re.subn(r" +finish_grace_secs: .*\n", "", (ROOT / "serve.yml").read_text())
    assert count == 1
    (forgetful / "serve.yml").write_text(dataflow)
    with serving(tmp_path, **FAKES, **SOON) as served:
        # How long that takes, the same dataflow without the setting shows.
        with serving(forgetful, forgetful / "serve.yml", **FAKES, **SOON) as other:
            other.ended()
        assert talk(chat()) == "You said: Hello."
