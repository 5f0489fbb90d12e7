"""The command dora-voice-chat and the client class, with the gateway in its dataflow."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import pytest
from gateway.serving import ROOT, Served, talk

from dora_voice_client.chat import ChatClient, ChatError, Delta, Done, Prefilled

COMMAND = str(Path(sys.executable).with_name("dora-voice-chat"))
README = (ROOT / "libs/client/README.md").read_text()


def address(served: Served) -> str:
    return f"ws://127.0.0.1:{served.port}"


def chat(served: Served, *arguments: str, typed: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments],
        env={**os.environ, "DORA_VOICE_URL": address(served), **env},
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_question_on_the_command_line_is_answered(fake: Served) -> None:
    done = chat(fake, "Are", "you", "there?")
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: Are you there?\n", "")


def test_each_line_that_is_typed_goes_on_with_the_conversation(fake: Served) -> None:
    done = chat(fake, "--system", "Be kind.", typed="One.\n\nTwo.\n")
    assert (done.returncode, done.stdout) == (0, "You said: One.\nYou said: Two.\n")


def test_all_replies_are_spoken_into_one_file(fake: Served, tmp_path: Path) -> None:
    done = chat(fake, "--speak", str(tmp_path / "replies.wav"), typed="One.\nTwo.\n")
    assert done.returncode == 0, done.stderr
    with wave.open(str(tmp_path / "replies.wav")) as both:
        assert (both.getframerate(), both.getsampwidth(), both.getnchannels()) == (24_000, 2, 1)
        chat(fake, "--speak", str(tmp_path / "one.wav"), "One.")
        with wave.open(str(tmp_path / "one.wav")) as one:
            assert 0 < one.getnframes() < both.getnframes()


def test_ctrl_c_stops_the_reply_and_the_command_ends_well(fake: Served, tmp_path: Path) -> None:
    command = [COMMAND, "--speak", str(tmp_path / "story.wav"), "Tell me a story!"]
    env = {**os.environ, "DORA_VOICE_URL": address(fake), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        first = run.stdout.read(8)
        run.send_signal(signal.SIGINT)
        shown = (first + run.stdout.read()).decode()
    assert run.returncode == 0
    assert shown.endswith(" (stopped)\n")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--url", "ws://127.0.0.1:9", "hi"], 1, "disconnected: ws://127.0.0.1:9/ws/chat: "),
        (["--url", "nonsense", "hi"], 2, "argument --url: 'nonsense': expected an address such as ws://"),
        (["--url", "http://127.0.0.1:9", "hi"], 2, "argument --url"),
        (["--url", "ws://127.0.0.1:9/ws/chat", "hi"], 2, "argument --url"),
        (["--speak", "/no/such/folder/a.wav", "hi"], 2, "--speak: /no/such/folder/a.wav: can't be written (No such"),
        (["--max-tokens", "0", "hi"], 2, "argument --max-tokens: '0': expected a whole number from 1"),
        (["--max-tokens", "many", "hi"], 2, "argument --max-tokens: 'many'"),
        ([" "], 2, "argument question: expected some words"),
    ],
)
def test_what_goes_wrong_is_told_in_a_line(fake: Served, arguments: list[str], code: int, told: str) -> None:
    done = chat(fake, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_the_pieces_of_an_answer_come_in_order(fake: Served) -> None:
    async def asked() -> list[Any]:
        async with ChatClient(address(fake)) as client:
            return [piece async for piece in client.ask([{"role": "user", "content": "Hello."}], speak=True)]

    prefilled, *deltas, done = talk(asked())
    assert isinstance(prefilled, Prefilled)
    assert isinstance(done, Done)
    assert all(isinstance(delta, Delta) for delta in deltas)
    assert "".join(delta.text for delta in deltas) == done.text == "You said: Hello."
    assert sum(len(delta.audio) for delta in deltas) > 24_000


def test_what_the_gateway_refuses_is_raised_with_its_code(fake: Served) -> None:
    async def asked() -> None:
        async with ChatClient(address(fake)) as client:
            async for _ in client.ask([{"role": "user", "content": "Hello."}], temperature=1):
                pass

    with pytest.raises(ChatError, match=r"ask\.temperature") as raised:
        talk(asked())
    assert raised.value.code == "bad_request"


def test_a_running_reply_is_stopped_from_another_task(fake: Served) -> None:
    async def stopped() -> Done:
        async with ChatClient(address(fake)) as client:
            story = [{"role": "user", "content": "Tell me a story!"}]
            async for piece in client.ask(story, speak=True):
                if isinstance(piece, Delta):
                    await asyncio.create_task(client.stop())
                if isinstance(piece, Done):
                    return piece
        raise AssertionError

    assert talk(stopped()).stopped


def test_a_server_that_goes_away_is_an_error_with_its_reason() -> None:
    from websockets.asyncio.server import ServerConnection, serve

    async def go_away(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.close(1001, "closing")

    async def asked() -> None:
        async with serve(go_away, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            async with ChatClient(f"ws://127.0.0.1:{port}") as client:
                async for _ in client.ask([{"role": "user", "content": "Hello."}]):
                    pass

    with pytest.raises(ChatError, match="closing") as raised:
        talk(asked())
    assert raised.value.code == "disconnected"


def test_the_readmes_commands_and_its_program_run(fake: Served, tmp_path: Path) -> None:
    (commands,) = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    env = {**os.environ, "DORA_VOICE_URL": address(fake), "PATH": f"{Path(COMMAND).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-ec", commands], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.count("What is the capital of France?")) == (0, 2), done.stderr
    assert (tmp_path / "answer.wav").stat().st_size > 1000
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    program = program.replace("ws://127.0.0.1:8765", address(fake))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("You said: What is the capital of France?"), done.stderr
