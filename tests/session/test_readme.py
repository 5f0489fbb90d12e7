"""The library's README shows code that runs."""

from __future__ import annotations

import base64
from pathlib import Path

from readme import code_blocks
from session.tiny_model import make_tiny_model
from session.tiny_vision_model import make_tiny_vision_model, picture

README = Path(__file__).parents[2] / "libs/session/README.md"


def test_what_it_shows_runs(tmp_path, capsys):
    one_session, pictures, many = code_blocks(README, "python")
    names = {}
    exec(one_session.replace("path/or/hub-id", str(make_tiny_model(tmp_path))), names)
    assert "computed_tokens=" in capsys.readouterr().out
    assert len(names["session"].turns.last.reply) <= 11
    seeing = make_tiny_vision_model(tmp_path / "seeing", "idefics3")
    (tmp_path / "cat.png").write_bytes(base64.b64decode(picture()))
    exec(pictures.replace("path/or/hub-id", str(seeing)).replace("cat.png", str(tmp_path / "cat.png")), names)
    assert names["response"].success
    exec(many, names | {"model": names["load"](str(tmp_path))})
