"""The hub: configs and headers read by ranges, names as people write them, failures in a line."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from model_files import CONFIG, safetensors, write

import kvproof
from kvproof.errors import HubError, KvproofError
from kvproof.model.formats import read_path
from kvproof.model.hub import HuggingFace, read_hub
from kvproof.model.hub_errors import explained
from kvproof.model.names import parse_hub_name


class Shelf(BaseHTTPRequestHandler):
    """A stand-in for the hub on this machine: file lists, files, ranges, gated repositories."""

    COMMIT = "c0ffee" * 6 + "c0ff"

    def __init__(self, files: dict[str, dict[str, bytes]], asked: list[str], *args: Any) -> None:
        self.files, self.asked = files, asked
        super().__init__(*args)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, *, body: bool) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[0] == "api":
            repo = "/".join(parts[2:4])
            names = [{"rfilename": name} for name in self.files.get(repo, {})]
            raw = json.dumps({"id": repo, "sha": self.COMMIT, "siblings": names}).encode()
            self.give(raw, 200 if repo in self.files else 404, body, repo)
            return
        repo, name = "/".join(parts[:2]), "/".join(parts[4:])
        found = self.files.get(repo, {}).get(name)
        if found is None:
            self.give(b"", 404, body, repo)
            return
        given = self.headers.get("Range")
        if given is None:
            self.asked += [f"{name} whole"] if body else []
            self.give(found, 200, body, repo)
            return
        low, high = map(int, given.removeprefix("bytes=").split("-"))
        self.asked.append(f"{name} {min(high, len(found)) - low}")
        self.give(found[low : high + 1], 206, body, repo)

    def give(self, raw: bytes, status: int, body: bool, repo: str) -> None:
        gated = repo.startswith("gated/")
        self.send_response(403 if gated else status)
        if gated:
            self.send_header("X-Error-Code", "GatedRepo")
        elif status == 404:
            self.send_header(
                "X-Error-Code", "EntryNotFound" if repo in self.files else "RepoNotFound"
            )
        self.send_header("Content-Length", str(len(raw)))
        self.send_header("X-Repo-Commit", self.COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(raw).hexdigest()}"')
        self.end_headers()
        if body:
            self.wfile.write(raw)


@pytest.fixture
def shelf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[dict[str, dict[str, bytes]], list[str]]]:
    """The hub's stand-in: fill the dict, read what was asked."""
    from huggingface_hub import constants

    files: dict[str, dict[str, bytes]] = {}
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Shelf, files, asked))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield files, asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_hub_gives_config_and_headers(
    shelf: tuple[dict[str, dict[str, bytes]], list[str]],
) -> None:
    files, asked = shelf
    weights = safetensors({"a": ("BF16", [3000, 1000])})
    files["org/model"] = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": weights}
    model = read_hub("org/model")
    assert model.stored_weight_bytes == 6_000_000
    assert model.source.revision == Shelf.COMMIT
    assert model.slots == kvproof.load_model(CONFIG).slots
    assert asked[0] == "config.json whole"
    assert all(int(row.split()[1]) <= 2**20 for row in asked[1:])
    assert read_hub("org/model", offline=True).slots == model.slots


def test_the_hub_gives_gguf_headers(
    shelf: tuple[dict[str, dict[str, bytes]], list[str]], tmp_path: Path
) -> None:
    files, asked = shelf
    raw = write(tmp_path / "m.gguf", tokens=20_000).read_bytes()
    files["org/gguf"] = {"m-Q8_0.gguf": raw + b"\0" * 20_000_000, "mmproj.gguf": raw}
    model = read_hub("org/gguf")
    assert model.slots == read_path(tmp_path / "m.gguf").slots
    assert model.stored_weight_bytes == read_path(tmp_path / "m.gguf").stored_weight_bytes
    assert sum(int(row.split()[1]) for row in asked) < 8_000_000
    files["org/gguf"]["m-Q4_0.gguf"] = raw
    with pytest.raises(HubError, match="2 GGUF models"):
        read_hub("org/gguf")
    assert read_hub("org/gguf/m-Q4_0.gguf").slots == model.slots
    with pytest.raises(HubError, match="has no file"):
        read_hub("org/gguf/absent.gguf")


def test_files_by_revision_and_tag(
    shelf: tuple[dict[str, dict[str, bytes]], list[str]], tmp_path: Path
) -> None:
    files, _ = shelf
    raw = write(tmp_path / "m.gguf").read_bytes()
    files["org/gguf"] = {
        "m-Q4_K_M.gguf": raw, "m-Q8_0.gguf": raw, "mtp-m-Q4_K_M.gguf": raw, "m-imatrix.gguf": raw,
        "UD/m-IQ1_S-00001-of-00002.gguf": raw, "README.md": b"",
    }  # fmt: skip
    assert read_hub("org/gguf:q8_0").name == "org/gguf/m-Q8_0.gguf"
    assert read_hub("org/gguf:latest").name == "org/gguf/m-Q4_K_M.gguf"
    assert kvproof.load_model("ollama:hf.co/org/gguf:Q8_0").name == "org/gguf/m-Q8_0.gguf"
    page = "https://huggingface.co/org/gguf/blob/main/m-Q8_0.gguf?download=true"
    assert kvproof.load_model(page).name == "org/gguf/m-Q8_0.gguf"
    with pytest.raises(HubError, match="no GGUF model Q5_0"):
        read_hub("org/gguf:Q5_0")


def test_config_and_weights_are_of_one_commit(
    shelf: tuple[dict[str, dict[str, bytes]], list[str]], tmp_path: Path
) -> None:
    files, _ = shelf
    files["org/model"] = {"config.json": json.dumps(CONFIG).encode()}
    assert kvproof.load_model("org/model@v1").source.revision == Shelf.COMMIT
    snapshots = tmp_path / "cache/models--org--model/snapshots"
    assert [path.name for path in snapshots.iterdir()] == [Shelf.COMMIT]
    assert kvproof.load_model("org/model", offline=True).source.revision == Shelf.COMMIT


def test_a_cached_snapshot_with_only_a_gguf(
    shelf: tuple[dict[str, dict[str, bytes]], list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "cache/models--org--gguf"
    (folder / "snapshots/abc123/sub").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("abc123")
    write(folder / "snapshots/abc123/sub/m-Q8_0.gguf")
    model = kvproof.load_model("org/gguf", offline=True)
    assert model.name == "org/gguf/sub/m-Q8_0.gguf"
    assert model.source.revision == "abc123"
    with pytest.raises(HubError, match="org/gguf@v2 is not in the local cache"):
        kvproof.load_model("org/gguf@v2", offline=True)


def test_a_revision_of_a_catalogue_name_says_where_it_was_read(
    shelf: tuple[dict[str, dict[str, bytes]], list[str]],
) -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B@v9")
    assert "not the hub's" in model.notes[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", ("org/name", None, None, None)),
        ("org/name@refs/pr/3", ("org/name", "refs/pr/3", None, None)),
        ("hf://org/name@v1/a/b.gguf", ("org/name", "v1", "a/b.gguf", None)),
        ("org/x:UD-Q4_K_XL", ("org/x", None, None, "UD-Q4_K_XL")),
        ("hf.co/org/x:Q4_0", ("org/x", None, None, "Q4_0")),
        ("huggingface.co/org/x", ("org/x", None, None, None)),
        ("https://huggingface.co/org/x/", ("org/x", None, None, None)),
        ("https://huggingface.co/org/x/tree/v2", ("org/x", "v2", None, None)),
        ("https://huggingface.co/org/x/tree/main", ("org/x", None, None, None)),
        ("https://huggingface.co/org/x/resolve/v2/f.gguf", ("org/x", "v2", "f.gguf", None)),
        ("https://huggingface.co/org/x/blob/main/config.json", ("org/x", None, None, None)),
        ("https://huggingface.co/org/x/discussions/4#id", ("org/x", None, None, None)),
    ],
)
def test_how_people_write_hub_names(text: str, expected: tuple[str | None, ...]) -> None:
    found = parse_hub_name(text)
    assert found is not None
    assert (found.repo, found.revision, found.file, found.tag) == expected


@pytest.mark.parametrize("text", ["", "name", "a/../b", "../a", "a b/c", "org/name/readme.txt",
                                  "x" * 2000])  # fmt: skip
def test_what_is_no_hub_name(text: str) -> None:
    assert parse_hub_name(text) is None


@pytest.mark.parametrize(
    "text",
    ["https://example.com/org/x", "https://huggingface.co/datasets/a/b", "https://huggingface.co",
     "https://huggingface.co/org", "http://[::1", "", "  ", "ollama:"],
)  # fmt: skip
def test_addresses_of_no_model_are_one_line(text: str) -> None:
    with pytest.raises(KvproofError) as caught:
        kvproof.load_model(text)
    assert "\n" not in str(caught.value)


def test_a_sidecar_of_the_cache_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    only = {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(only))
    found = kvproof.load_model(tmp_path).quantization
    assert found is not None
    assert (found.default, found.kv_dtype) == (None, "fp8_e4m3")


def test_failures_of_the_hub_say_what_to_do(
    shelf: tuple[dict[str, dict[str, bytes]], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, _ = shelf
    files["org/empty"] = {"README.md": b"nothing"}
    for name, what in (
        ("org/none", "no org/none"),
        ("gated/model", "is gated"),
        ("org/empty", "no config"),
    ):
        with pytest.raises(HubError, match=what) as caught:
            read_hub(name)
        assert caught.value.exit_status == 3
        assert caught.value.hint
    with pytest.raises(HubError, match="not in the local cache"):
        read_hub("org/never", offline=True)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match="can't be reached"):
        read_hub("org/model")


def test_a_hub_without_the_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(HubError, match="huggingface_hub"):
        HuggingFace()


def _failure(status: int) -> Exception:
    error = RuntimeError("no")
    error.response = type("R", (), {"status_code": status})()  # type: ignore[attr-defined]
    return error


def test_unknown_failures_are_one_line() -> None:
    assert "answers 500" in str(explained(_failure(500), "a/b"))
    assert "HF_TOKEN" in str(explained(_failure(401), "a/b"))
    assert "OSError" in str(explained(OSError("x\ny"), "a/b"))


def test_a_hub_out_of_reach_leaves_the_near_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> kvproof.Model:
        raise HubError("the hub can't be reached", hint="check the network")

    monkeypatch.setattr("kvproof.model.hub.read_hub", unreachable)
    with pytest.raises(HubError) as caught:
        kvproof.load_model("Qwen/Qwen3-9B")
    assert "check the network; or, did you mean" in str(caught.value.hint)
    assert "Qwen/Qwen3-8B" in str(caught.value.hint)
    with pytest.raises(HubError) as caught:
        kvproof.load_model("zzzzz/qqqqq")
    assert caught.value.hint == "check the network"
