"""From nothing to talking, as the README says."""

from __future__ import annotations

import os
import signal
import subprocess

from gateway.serving import ROOT, Served, free_port, wait_until_ready
from readme import code_blocks

MAKE_SERVE, CHAT = code_blocks(ROOT / "README.md", "sh")[-2:]


def test_make_serve_and_the_commands_after_it(tmp_path) -> None:
    assert [block.strip() for block in code_blocks(ROOT / "nodes/gateway/README.md", "sh")] == [MAKE_SERVE.strip()]
    port = free_port()
    env = {**os.environ, "DORA_VOICE_URL": f"ws://127.0.0.1:{port}", "PORT": str(port)}
    log = tmp_path / "serve.log"
    with log.open("w") as out:
        run = subprocess.Popen(
            ["bash", "-ec", f"exec {MAKE_SERVE}"], cwd=ROOT, env=env, stdout=out, stderr=out, start_new_session=True
        )
    try:
        served = Served(port, log, run.pid, run)
        wait_until_ready(served)
        assert "<title>" in served.get("/")[1]
        (ROOT / "out/answer.wav").unlink(missing_ok=True)
        done = subprocess.run(["bash", "-euc", CHAT], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr + log.read_text()[-3000:]
        assert "Paris" in done.stdout
        assert "Rome" in done.stdout
        assert (ROOT / "out/answer.wav").stat().st_size > 24_000
    finally:
        os.killpg(run.pid, signal.SIGINT)
        run.wait(60)
    shown = log.read_text()
    assert f"listens on http://127.0.0.1:{port}" in shown
    assert "Paris" not in shown, "no word of what was said is in the log"
