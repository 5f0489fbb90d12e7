"""The command dora-voice-chat: text in, the reply as it comes, and on request its sound as a WAV file."""

from __future__ import annotations

import argparse
import array
import asyncio
import os
import signal
import sys
import wave
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

from dora_voice_client.chat import REPLY_RATE_HZ, ChatClient, ChatError, Delta, Done, Queued


def main() -> None:
    """Console script `dora-voice-chat`."""
    arguments = _arguments()
    given = arguments.parse_args()
    if given.question and not " ".join(given.question).strip():
        arguments.error("argument question: expected some words")
    try:
        asyncio.run(_talk(given))
    except ChatError as error:
        sys.exit(f"{error.code}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dora-voice-chat", description="Talks with a dora-voice gateway.")
    parser.add_argument("question", nargs="*", help="without one, each line of the standard input is one")
    parser.add_argument("--url", type=_address, default=os.environ.get("DORA_VOICE_URL", "ws://127.0.0.1:8765"))
    parser.add_argument("--token", default=os.environ.get("DORA_VOICE_TOKEN", ""))
    parser.add_argument("--system", default="", help="what the model is told first")
    parser.add_argument("--max-tokens", type=_count, default=256, help="longest reply")
    parser.add_argument("--speak", type=_writable, metavar="FILE", help="the replies, as a WAV file")
    return parser


def _address(url: str) -> str:
    """Of the gateway, without a path."""
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.netloc or parts.path.strip("/"):
        raise argparse.ArgumentTypeError(f"{url!r}: expected an address such as ws://127.0.0.1:8765")
    return url


def _count(number: str) -> int:
    if not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{number!r}: expected a whole number from 1")
    return int(number)


def _writable(path: str) -> Path:
    try:
        Path(path).open("ab").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: can't be written ({error.strerror})") from error
    return Path(path)


async def _talk(given: argparse.Namespace) -> None:
    messages = [{"role": "system", "content": given.system}] if given.system else []
    with _wav(given.speak) if given.speak else nullcontext() as wav:
        async with ChatClient(given.url, given.token) as chat:
            for question in [" ".join(given.question)] if given.question else _lines():
                messages.append({"role": "user", "content": question})
                reply = await _answer(chat, messages, given.max_tokens, wav)
                messages.append({"role": "assistant", "content": reply})


async def _answer(
    chat: ChatClient, messages: Sequence[dict[str, str]], most_tokens: int, wav: wave.Wave_write | None
) -> str:
    """Prints the reply while it comes. Ctrl-C stops it, not the command."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: asyncio.ensure_future(chat.stop()))
    try:
        async for piece in chat.ask(messages, speak=wav is not None, generation={"max_new_tokens": most_tokens}):
            if isinstance(piece, Queued):
                print(f"(waiting, number {piece.position} in line)", file=sys.stderr)
            elif isinstance(piece, Delta):
                print(piece.text, end="", flush=True)
                if wav is not None and piece.audio:
                    wav.writeframes(_int16(piece.audio))
            elif isinstance(piece, Done):
                print(" (stopped)" if piece.stopped else "")
                return piece.text
    except ChatError:
        print()
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    return ""


def _lines() -> Iterator[str]:
    """What is typed, without empty lines."""
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            line = input(prompt).strip()
        except EOFError:
            return
        if line:
            yield line


@contextmanager
def _wav(path: Path) -> Iterator[wave.Wave_write]:
    with path.open("wb") as file, wave.open(file) as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(REPLY_RATE_HZ)
        yield wav


def _int16(float32: bytes) -> bytes:
    samples = array.array("f", float32)
    if sys.byteorder == "big":
        samples.byteswap()
    rounded = array.array("h", (max(-32768, min(32767, round(sample * 32768))) for sample in samples))
    if sys.byteorder == "big":
        rounded.byteswap()
    return rounded.tobytes()
