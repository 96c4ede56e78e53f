"""A client process to be killed: it asks for streams, says so, and reads them.

python victim.py URL STREAMS
"""

from __future__ import annotations

import asyncio
import sys

from under_load.client import connect, request_bytes
from under_load.traffic import long_stream


async def main(url: str, streams: int) -> None:
    opened = [await connect(url) for _ in range(streams)]
    for number, (_, writer) in enumerate(opened):
        writer.write(request_bytes(long_stream(5000 + number)))
    print("asked", flush=True)
    await asyncio.gather(*(_drain(reader) for reader, _ in opened))


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(2**16):
        pass


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
