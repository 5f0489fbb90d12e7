"""Log lines in the form that dora's daemon reads: one JSON object a line, so that levels survive."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

LEVELS = {"CRITICAL": "error", "ERROR": "error", "WARNING": "warn", "INFO": "info", "DEBUG": "debug"}


class DoraFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        return json.dumps(
            {
                "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
                "level": LEVELS.get(record.levelname, "info"),
                "target": record.name,
                "message": message,
            }
        )


def log_as_dora() -> None:
    """Sends what the `dora_voice` loggers say to stdout, where the daemon picks it up."""
    lines = logging.StreamHandler(sys.stdout)
    lines.setFormatter(DoraFormatter())
    logger = logging.getLogger("dora_voice")
    logger.handlers = [lines]
    logger.setLevel(logging.DEBUG)
    # dora's own bridge sits on the root logger and would say everything twice.
    logger.propagate = False
