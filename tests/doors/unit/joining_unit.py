"""A unit in a process of its own, with nothing of Trivium's: `python joining_unit.py BUS NAME`.

Its tasks say what users tell them, to the user and on their output; what they hear from tasks they are linked to they tell the
user once it is complete. It ends when its standard input does.
"""

from __future__ import annotations

import json
import sys
import time

import zmq

BUS, NAME = sys.argv[1:3]
SYS = BUS if "://" in BUS else f"ipc://{BUS}/rpc.sys"

context = zmq.Context()
context.linger = 500
poller = zmq.Poller()
handlers = {}
tasks = {}
lines = {}


def ask(action, text):
    with context.socket(zmq.REQ) as call:
        call.connect(SYS)
        call.send_multipart([action.encode(), text.encode()])
        return call.recv()


def split(packed):
    end = 1 + packed[0]
    return packed[1:end].decode(), packed[end:]


def push(url, frame):
    """All that one client is told goes over one socket, so that it comes in order."""
    if url not in lines:
        lines[url] = context.socket(zmq.PUSH)
        lines[url].connect(url)
    lines[url].send(json.dumps({"created": int(time.time()), **frame}).encode() + b"\n")


def listen(socket, handler):
    poller.register(socket, zmq.POLLIN)
    handlers[socket] = handler
    return socket


def subscribe(url, handler):
    socket = context.socket(zmq.SUB)
    socket.subscribe(b"")
    socket.connect(url)
    return listen(socket, lambda sub: handler(json.loads(sub.recv())))


class Task:
    def __init__(self, url, request):
        number, urls = split(ask("register_unit", NAME))
        output_url, rest = split(urls)
        self.work_id = f"{NAME}.{number}"
        self.url = url
        self.request = request
        self.format = request["data"]["response_format"]
        self.output = context.socket(zmq.PUB)
        self.output.bind(output_url)
        if "*" in output_url:
            tell_url(f"{self.work_id}.out_port", self.output)
        self.sockets = [subscribe(rest.decode(), self.hear_user)]
        self.heard = ""
        for name in request["data"].get("input", []):
            if "." in name and name.split(".")[1].isdigit():
                self.link(name)

    def link(self, name):
        self.sockets.append(subscribe(ask("sql_select", f"{name}.out_port").decode(), self.hear_task))

    def say(self, object, data, code=0, message="", request=None):
        frame = {"request_id": (request or self.request)["request_id"], "work_id": self.work_id, "object": object, "data": data}
        push(self.url, {**frame, "error": {"code": code, "message": message}})

    def publish(self, object, data):
        frame = {"request_id": self.request["request_id"], "work_id": self.work_id, "object": object, "data": data}
        self.output.send(json.dumps({**frame, "created": 0, "error": {"code": 0, "message": ""}}).encode() + b"\n")

    def hear_user(self, request):
        self.url, self.request = request["zmq_com"], request
        data = request["data"]
        text = data["delta"] if isinstance(data, dict) else data
        if text == "noise":
            with context.socket(zmq.PUSH) as line:
                line.connect(self.url)
                line.send(b"\xff{ no frame")
                line.send(b'{"request_id": 7}')
            self.output.send(b"no frame")
        if text == "flood":
            for _ in range(20000):
                self.output.send(b'{"object":"None","data":"flood"}')
            time.sleep(0.3)  # what its own socket cannot take is lost
        if "stream" not in self.format:
            self.publish(self.format, text)
            self.say(self.format, text)
            return
        self.publish(self.format, {"delta": text, "finish": True, "index": 0})
        self.say(self.format, {"delta": text, "finish": False, "index": 0})
        if text != "hang":
            self.say(self.format, {"delta": "", "finish": True, "index": 1})

    def hear_task(self, message):
        data = message["data"]
        self.heard += data["delta"] if isinstance(data, dict) else data
        if not isinstance(data, dict) or data["finish"]:
            self.say(f"{NAME}.utf-8", self.heard)
            self.heard = ""

    def close(self):
        for socket in self.sockets:
            poller.unregister(socket)
            del handlers[socket]
            socket.close(0)
        self.output.close(0)


def tell_url(key, socket):
    port = socket.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
    ask("sql_set", json.dumps({"key": key, "val": f"tcp://127.0.0.1:{port}"}))


def take_call(rpc):
    action, payload = rpc.recv_multipart()
    action = action.decode()
    if action == "stall":
        time.sleep(1.5)
    actions = ("setup", "link", "exit", "taskinfo", "silent", "stall")
    rpc.send(b"None" if action in actions else f"{action} NotAction".encode())
    if action in actions:
        url, text = split(payload)
        act(action, url, json.loads(text))


def act(action, url, request):
    task = tasks.get(request["work_id"])
    if action == "setup":
        task = Task(url, request)
        tasks[task.work_id] = task
        task.say("None", "None")
    elif action == "taskinfo" and task is None:
        frame = {"request_id": request["request_id"], "work_id": NAME, "object": f"{NAME}.tasklist", "data": list(tasks)}
        push(url, frame)
    elif action in ("link", "exit") and task is None:
        error = {"code": -6, "message": "Unit Does Not Exist"}
        push(url, {"request_id": request["request_id"], "work_id": request["work_id"], "error": error})
    elif action == "link":
        task.url = url
        task.link(request["data"])
        task.say("None", "None", request=request)
    elif action == "exit":
        task.url = url
        task.say("None", "None", request=request)
        tasks.pop(task.work_id).close()
        ask("release_unit", task.work_id)


rpc = context.socket(zmq.REP)
if "://" in BUS:
    rpc.bind("tcp://127.0.0.1:*")
    tell_url(f"rpc.{NAME}", rpc)
else:
    rpc.bind(f"ipc://{BUS}/rpc.{NAME}")
listen(rpc, take_call)
poller.register(sys.stdin, zmq.POLLIN)
print("ready", flush=True)
while True:
    ready = dict(poller.poll())
    if sys.stdin.fileno() in ready:
        break
    for socket in ready:
        if socket in handlers:
            handlers[socket](socket)
for task in tasks.values():
    task.close()
context.destroy()
