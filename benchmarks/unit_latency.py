"""How soon the first frame of an answer of the unit door leaves, and is at its client, counted from the token that fills it.

    python benchmarks/unit_latency.py

The server runs in this process, the client in another; both read the same clock. A frame's time is the end of the step that
gave its last token, by the engine's own account. It leaves when it is given to the system, and has arrived when the client has
read it: on a machine whose cores all decode, the system lets a client of the same machine wait for one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence

from machine import busy_cores, warn_if_busy
from peers import model_path

from trivium.config import EngineConfig
from trivium.doors.dispatcher import Dispatcher, DispatchObserver
from trivium.doors.unit.config import UnitConfig
from trivium.doors.unit.server import UnitServer
from trivium.doors.unit.tcp import TcpConnection
from trivium.engine.native_engine import NativeEngine
from trivium.engine.outputs import OutputDelta

_CLIENT = """
import json, socket, sys, time
name, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
connection = socket.create_connection(("127.0.0.1", port))
lines = connection.makefile("r")
settings = {"model": name, "response_format": "llm.utf-8.stream", "input": "llm.utf-8", "enoutput": True, "prompt": "",
            "max_token_len": 32}
def say(**message):
    connection.sendall(json.dumps(message).encode())
say(request_id="s", work_id="llm", action="setup", object="llm.setup", data=settings)
task = json.loads(lines.readline())["work_id"]
for i in range(count):
    say(request_id=str(i), work_id=task, action="inference", object="llm.utf-8", data=f"Tell me about the number {i}.")
    arrivals = []
    while not arrivals or not frame["data"]["finish"]:
        frame = json.loads(lines.readline())
        arrivals.append(time.monotonic())
    print(arrivals[0], flush=True)
"""


class FirstFrames(DispatchObserver):
    """When the token came that filled the first frame of each answer, and when that left. A frame is a delta; one client."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.departures: list[float] = []
        self._seen: set[str] = set()

    def delivered(self, outputs: Sequence[OutputDelta]) -> None:
        for delta in outputs:
            if delta.request_id not in self._seen:
                self._seen.add(delta.request_id)
                self.times.append(delta.time)

    def watch(self) -> None:
        """Have connections tell when they send: what follows a first delta is its frame."""
        send = TcpConnection.send

        def watched(connection: TcpConnection, frame: bytes, *, apart: bool = False) -> None:
            if len(self.departures) < len(self.times):
                self.departures.append(time.monotonic())
            send(connection, frame, apart=apart)

        TcpConnection.send = watched  # type: ignore[method-assign]


async def measure(engine: NativeEngine, answers: int) -> tuple[list[float], list[float]]:
    """Milliseconds from token to departure, and to arrival, per answer."""
    config = UnitConfig(unit_port=0)
    observer = FirstFrames()
    observer.watch()
    server = UnitServer(config, Dispatcher(engine, observer))
    await server.start()
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CLIENT, engine.model_info.name, str(server.port), str(answers), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await client.communicate()
    await server.stop(1.0)
    arrivals = [float(line) for line in output.split()]
    return since(observer.times, observer.departures), since(observer.times, arrivals)


def since(starts: list[float], ends: list[float]) -> list[float]:
    return [1000 * (end - start) for start, end in zip(starts, ends, strict=True)]


def summary(latencies: list[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    return {
        "median_ms": round(statistics.median(ordered), 3),
        "p99_ms": round(ordered[-(-99 * len(ordered) // 100) - 1], 3),
        "worst_ms": round(ordered[-1], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file (default: the catalogue's smollm2)")
    parser.add_argument("--answers", type=int, default=200, help="default: 200")
    options = parser.parse_args()
    if warning := warn_if_busy(busy_cores()):
        print(warning, file=sys.stderr)
    sys.setswitchinterval(0.0002)  # as `trivium serve` has it
    with NativeEngine.load(EngineConfig(model=model_path(options.model), max_num_seqs=8)) as engine:
        left, arrived = asyncio.run(measure(engine, options.answers))
    print(json.dumps({"answers": len(left), "left": summary(left), "arrived": summary(arrived)}))


if __name__ == "__main__":
    main()
