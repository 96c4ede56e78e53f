"""The log of a server: one line of a kind in ten seconds, so that who sends nonsense cannot fill a disk.

In: records of all loggers, uvicorn's included. Out: those that are written, with the number of those before them that
were not. Never looks into what a record is about.
"""

from __future__ import annotations

import logging
import threading
import time

_SECONDS = 10.0
_FORMAT = "%(asctime)s %(levelname)s %(message)s"


class Sparing(logging.Filter):
    """Lets one record of a kind through in some seconds, and says with the next how many were left out.

    Of a kind are records of one logger, level and format, and of one type of exception.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._seen: dict[tuple[object, ...], tuple[float, int]] = {}  # when the last was let through, how many since

    def filter(self, record: logging.LogRecord) -> bool:
        raised = record.exc_info[0] if record.exc_info else None
        kind = (record.name, record.levelno, str(record.msg), raised)
        now = time.monotonic()
        with self._lock:
            last, left_out = self._seen.get(kind, (-_SECONDS, 0))
            if now - last < _SECONDS:
                self._seen[kind] = last, left_out + 1
                return False
            self._seen[kind] = now, 0
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} more like this were left out)", ()
        return True


def log_sparingly() -> None:
    """Writes warnings and errors of this process to stderr, unless it has a log already."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    handler.addFilter(Sparing())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
