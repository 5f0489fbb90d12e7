"""The real sink, busy for three seconds when its first message comes."""

import time

from dora_voice.runtime import serve
from dora_voice_sink.node import PORTS, Config, build
from dora_voice_sink.stage import SinkStage


def build_busy(config: Config) -> SinkStage:
    stage = build(config)
    process = stage.process

    def busy_then_process(message):
        stage.process = process
        time.sleep(3)
        process(message)

    stage.process = busy_then_process
    return stage


serve(build_busy, Config, PORTS)
