"""A client in a process of its own that knows HTTP and nothing of the project.

It reads one JSON object: address, bodies to send in turns, and either when each is to arrive
(`arrivals_s`, open loop) or over how many connections it asks again and again (`connections`,
closed loop). It writes one: of each request its body, when it was due, sent and answered, and the
status. Times are seconds since `start_s` of the system's monotonic clock.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Client:
    def __init__(self, orders: dict[str, Any]) -> None:
        self.orders = orders
        self.free: list[Connection] = []
        self.rows: list[tuple[int, float, float, float, int]] = []
        self.messages: list[bytes] = []
        for body in orders["bodies"]:
            data = Path(body["file"]).read_bytes()
            head = (
                f"POST {body['path']} HTTP/1.1\r\nHost: {orders['host']}\r\n"
                f"Content-Type: application/octet-stream\r\nContent-Length: {len(data)}\r\n"
                f"Inference-Header-Content-Length: {body['header_bytes']}\r\n\r\n"
            )
            self.messages.append(head.encode() + data)

    def now_s(self) -> float:
        return time.monotonic() - self.orders["start_s"]

    async def connection(self) -> Connection:
        while self.free:
            reader, writer = self.free.pop()
            if not reader.at_eof():  # else the server has closed it, idle as it was
                return reader, writer
        return await asyncio.open_connection(self.orders["host"], self.orders["port"])

    async def ask(self, number: int, due_s: float) -> None:
        body = number % len(self.messages)
        reader, writer = await self.connection()
        sent_s = self.now_s()
        writer.write(self.messages[body])
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status = int(head.split()[1])
        length = int(head.partition("\r\ncontent-length:")[2].split()[0])
        await reader.readexactly(length)
        self.rows.append((body, due_s, sent_s, self.now_s(), status))
        self.free.append((reader, writer))

    async def open_loop(self) -> None:
        asked: list[asyncio.Task[None]] = []
        for number, due_s in enumerate(self.orders["arrivals_s"]):
            await asyncio.sleep(due_s - self.now_s())
            asked.append(asyncio.create_task(self.ask(number, due_s)))
        await asyncio.gather(*asked)

    async def closed_loop(self) -> None:
        numbers = iter(range(self.orders["requests"]))

        async def again_and_again() -> None:
            for number in numbers:
                await self.ask(number, self.now_s())

        await asyncio.gather(*(again_and_again() for _ in range(self.orders["connections"])))

    async def run(self) -> None:
        await asyncio.sleep(-self.now_s())
        await (self.open_loop() if "arrivals_s" in self.orders else self.closed_loop())
        for _, writer in self.free:
            writer.close()


if __name__ == "__main__":
    client = Client(json.load(sys.stdin))
    asyncio.run(client.run())
    json.dump(client.rows, sys.stdout)
