"""A program of its own, with nothing of Trivium's, that calls units over the bus: `python calling_program.py BUS`.

It does what lines on its standard input say, as the original's sys does it, and writes what it is told, one JSON a line:
["call", UNIT, ACTION, TEXT] has the unit called, ["taken", …] is what it returns; ["frame", …] comes to the program's URL;
["listen", WORK_ID] subscribes to a task's output, which comes as ["output", …].
"""

from __future__ import annotations

import json
import os
import sys

import zmq

BUS = sys.argv[1]
context = zmq.Context()


def tell(kind, what):
    print(json.dumps([kind, what]), flush=True)


def call(url, action, payload):
    with context.socket(zmq.REQ) as door:
        door.connect(url)
        door.send_multipart([action.encode(), payload])
        return door.recv().decode()


def ask(action, text):
    return call(BUS if "://" in BUS else f"ipc://{BUS}/rpc.sys", action, text.encode())


def unit_url(name):
    return ask("sql_select", f"rpc.{name}") if "://" in BUS else f"ipc://{BUS}/rpc.{name}"


frames = context.socket(zmq.PULL)
frames.bind("tcp://127.0.0.1:*" if "://" in BUS else f"ipc://{BUS}/llm/9{os.getpid()}.sock")
own_url = frames.get_string(zmq.LAST_ENDPOINT).encode()
output = context.socket(zmq.SUB)
output.subscribe(b"")
poller = zmq.Poller()
for source in (sys.stdin, frames, output):
    poller.register(source, zmq.POLLIN)
tell("url", own_url.decode())
while True:
    ready = dict(poller.poll())
    if frames in ready:
        tell("frame", json.loads(frames.recv()))
    if output in ready:
        tell("output", json.loads(output.recv()))
    if sys.stdin.fileno() in ready:
        line = sys.stdin.readline()
        if not line:
            break
        what, *rest = json.loads(line)
        if what == "listen":
            output.connect(ask("sql_select", f"{rest[0]}.out_port"))
        else:
            unit, action, text = rest
            tell("taken", call(unit_url(unit), action, bytes([len(own_url)]) + own_url + text.encode()))
frames.close(0)
context.destroy(0)
if own_url.startswith(b"ipc://"):
    os.unlink(own_url.removeprefix(b"ipc://"))
