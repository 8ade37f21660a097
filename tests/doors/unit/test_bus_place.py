"""Where the bus is: folders, addresses, and who may be there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
from bus_parts import SPEECH, Caller, remote, unit
from engine_parts import make_engine
from unit_parts import serving_unit, wait_until

from trivium.doors.unit.config import UnitConfig
from trivium.doors.unit.remote.address import BusAddress, SocketNames
from trivium.doors.unit.remote.messages import pack
from trivium.errors import ConfigError


def test_a_unit_of_another_process_in_place_of_ours(folder):
    with make_engine() as engine, serving_unit(engine, unit_bus=folder, unit_without=["llm"]) as door:
        assert "llm" not in door.server.units
        with unit(folder, "llm"), door.client() as client:
            work_id = client.set_up("llm")
            client.infer(work_id, "hello")
            assert client.answer()[0] == "hello"


def test_two_servers_do_not_share_a_folder(folder):
    with make_engine() as engine, serving_unit(engine, unit_bus=folder) as door:
        with pytest.raises(ConfigError, match="another server"), serving_unit(engine, unit_bus=folder):
            pass
        with Caller(remote(door).url) as caller:
            assert caller.ask("sql_select", "x") == b""
    assert list(Path(folder).iterdir()) == []


def test_what_a_killed_server_left(folder):
    with zmq.Context() as context, context.socket(zmq.REP) as left:
        left.bind(f"ipc://{folder}/rpc.sys")
    assert Path(folder, "rpc.sys").exists()
    with make_engine() as engine, serving_unit(engine, unit_bus=folder) as door, Caller(remote(door).url) as caller:
        assert caller.ask("sql_select", "x") == b""
        assert Path(folder, "rpc.sys").stat().st_mode & 0o777 == 0o600
        assert Path(folder, "llm").stat().st_mode & 0o777 == 0o700


def test_a_port_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken, make_engine() as engine:
        bus = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match="cannot join"), serving_unit(engine, unit_bus=bus):
            pass


def test_a_folder_that_cannot_be_made(tmp_path, folder):
    Path(folder, "file").write_text("")
    with (
        make_engine() as engine,
        pytest.raises(ConfigError, match="cannot join"),
        serving_unit(engine, unit_bus=f"{folder}/file"),
    ):
        pass


def test_without_pyzmq(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "trivium.doors.unit.remote.remote_units", None)
    with make_engine() as engine, pytest.raises(ConfigError, match=r"trivium\[bus\]"), serving_unit(engine, unit_bus=folder):
        pass


def test_pyzmq_is_not_imported_without_a_bus():
    code = "import sys, trivium.doors.unit.server; print('zmq' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x" * 60,
        "tcp://",
        "tcp://127.0.0.1",
        "tcp://0.0.0.0:5",
        "tcp://[::]:5",
        "tcp://host:5",
        "udp://1.2.3.4:5",
        "ipc:///tmp",
        "tcp://1.2.3.4:99999",
        "tcp://1.2.3.4:5/x",
    ],
)
def test_options_that_are_no_address(text):
    with pytest.raises(ConfigError, match="unit_bus must be"):
        UnitConfig(unit_bus=text)


def test_addresses():
    assert UnitConfig().bus_address is None
    folder = UnitConfig(unit_bus="/tmp").bus_address
    assert (folder.sys_url, folder.unit_url("asr"), folder.is_local) == ("ipc:///tmp/rpc.sys", "ipc:///tmp/rpc.asr", True)
    network = UnitConfig(unit_bus="tcp://10.1.2.3:5000", unit_bus_open=True).bus_address
    assert (network.sys_url, network.unit_url("asr"), network.is_local) == ("tcp://10.1.2.3:5000", None, False)
    local = UnitConfig(unit_bus="tcp://[::1]:5000").bus_address
    assert (local.sys_url, local.is_local) == ("tcp://[::1]:5000", True)
    assert UnitConfig(unit_bus="tcp://:5000").bus_address.sys_url == "tcp://127.0.0.1:5000"


def test_names_are_those_of_the_original():
    names = SocketNames(BusAddress.of_option("/tmp"))
    assert names.inference("asr") == "ipc:///tmp/llm/5010.sock.asr.inference_url"
    assert names.output("asr") == "ipc:///tmp/llm/5011.sock.asr.output_url"
    assert names.reply() == "ipc:///tmp/llm/8001.sock"


def test_pairs():
    assert pack("1000", pack("out", b"in")) == b"\x041000\x03outin"
    with pytest.raises(ValueError, match="longer than 127"):
        pack("x" * 128, b"")


def test_units_that_the_server_never_has():
    with pytest.raises(ConfigError, match="unit_without must be llm or kws"):
        UnitConfig(unit_without=["asr", "ars"])


def test_a_folder_that_others_may_use_is_refused(folder):
    inner = Path(folder) / "llm"
    inner.mkdir()
    inner.chmod(0o777)
    with make_engine() as engine:
        with pytest.raises(ConfigError, match="closed to others"), serving_unit(engine, unit_bus=folder, unit_without=SPEECH):
            pass
        inner.chmod(0o700)
        with serving_unit(engine, unit_bus=folder, unit_without=SPEECH):
            pass


@pytest.mark.parametrize("kind", ["link", "file"])
def test_an_inner_folder_that_is_none_is_refused(folder, tmp_path, kind):
    """Whoever may write to the folder could have it point anywhere."""
    inner = Path(folder) / "llm"
    inner.symlink_to(tmp_path) if kind == "link" else inner.write_text("")
    with (
        make_engine() as engine,
        pytest.raises(ConfigError, match="a folder of this user's"),
        serving_unit(engine, unit_bus=folder),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_sockets_are_never_open_to_others(folder, monkeypatch):
    """Not even between their making and the change of their rights, wherever others may enter."""
    Path(folder).chmod(0o755)
    seen = []
    chmod = Path.chmod

    def change(path, mode):
        seen.append([(path.name, path.stat().st_mode & 0o777) for path in Path(folder).glob("rpc.*")])
        chmod(path, mode)

    before = os.umask(0)
    try:
        monkeypatch.setattr(Path, "chmod", change)
        with make_engine() as engine, serving_unit(engine, unit_bus=folder, unit_without=SPEECH):
            names = {path.name: path.stat().st_mode & 0o777 for path in Path(folder).glob("rpc.*")}
    finally:
        os.umask(before)
    assert names == {"rpc.sys": 0o600, "rpc.llm": 0o600}
    assert seen[:2] == [[], [("rpc.sys", 0o600)]]
    assert {mode for sockets in seen for _, mode in sockets} == {0o600}


def test_a_folder_that_others_may_write_to_is_told(folder, caplog):
    with make_engine() as engine:
        with serving_unit(engine, unit_bus=folder):
            pass
        assert "pass for units" not in caplog.text
        Path(folder).chmod(0o777)
        with serving_unit(engine, unit_bus=folder):
            pass
    assert "pass for units" in caplog.text


def test_servers_that_start_at_once_do_not_share_a_folder(folder):
    """The second one comes before the first can be called."""
    with make_engine() as engine, serving_unit(engine, unit_bus=folder):
        Path(folder, "rpc.sys").unlink()
        with pytest.raises(ConfigError, match="another server"), serving_unit(engine, unit_bus=folder):
            pass


def test_a_place_that_another_program_has(folder):
    """The original's sys, say."""
    with zmq.Context() as context, context.socket(zmq.REP) as other, make_engine() as engine:
        other.bind(f"ipc://{folder}/rpc.sys")
        with pytest.raises(ConfigError, match="another server"), serving_unit(engine, unit_bus=folder):
            pass
        assert Path(folder, "rpc.sys").is_socket()
        with pytest.raises(ConfigError, match="another server"), serving_unit(engine, unit_bus=folder):
            pass


def test_a_name_that_another_program_has_taken_stays(folder):
    with zmq.Context() as context, context.socket(zmq.REP) as other, make_engine() as engine:
        with serving_unit(engine, unit_bus=folder):
            other.bind(f"ipc://{folder}/rpc.sys")
        assert Path(folder, "rpc.sys").is_socket()


def test_the_serial_line_of_the_bus_outlives_its_unplugging(folder):
    master, slave = os.openpty()
    with make_engine() as engine, serving_unit(engine, unit_bus=folder, unit_serial=[os.ttyname(slave)]) as door:
        (line,) = door.server._sys.serial_lines
        frames = []
        line.send = lambda frame, **_: frames.append(frame)
        with Caller(remote(door).url) as caller:
            url = caller.ask("sql_select", "serial_zmq_url")
            line.closed = True
            door.call(lambda: remote(door).expire())
            line.closed = False
            assert caller.ask("sql_select", "serial_zmq_url") == url
            user = caller.socket(zmq.PUSH)
            user.connect(url)
            user.send(b'{"request_id":"x","work_id":"echo.9","object":"o","data":"hi","error":{"code":0,"message":""}}')
            wait_until(lambda: frames)
    os.close(master)
    os.close(slave)


def test_a_network_must_be_asked_for(monkeypatch, caplog):
    for address in ("tcp://10.1.2.3:5000", "tcp://[2001:db8::1]:5000"):
        with pytest.raises(ConfigError, match="unit_bus_open"):
            UnitConfig(unit_bus=address)
        assert UnitConfig(unit_bus=address, unit_bus_open=True).bus_address.is_local is False
    monkeypatch.setattr(BusAddress, "is_local", False)
    with zmq.Context() as context, context.socket(zmq.REP) as probe:
        port = probe.bind_to_random_port("tcp://127.0.0.1")
    with make_engine() as engine, serving_unit(engine, unit_bus=f"tcp://127.0.0.1:{port}", unit_bus_open=True):
        assert f"whoever reaches tcp://127.0.0.1:{port} may join" in caplog.text


@pytest.mark.parametrize(
    ("url", "may"),
    [
        ("ipc://{folder}/rpc.asr", True),
        ("ipc://{folder}/llm/5010.sock", True),
        ("ipc://{folder}/llm/../../etc/passwd", False),
        ("ipc://{folder}/../x", False),
        ("ipc://{folder}/llm/", False),
        ("ipc://{folder}/other/x", False),
        ("ipc://elsewhere/x", False),
    ],
)
def test_units_name_sockets_of_the_folder_alone(folder, url, may):
    assert BusAddress.of_option(folder).may_be(url.format(folder=folder)) is may
