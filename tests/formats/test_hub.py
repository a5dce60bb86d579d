"""A model pushed to a hub of this machine: the files and the card that arrive."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

import glassformer
import tiny
from glassformer.cli import main
from glassformer.formats import hub
from mistakes import mistake


class Hub(BaseHTTPRequestHandler):
    """Just enough of the hub's API to create a repository and to take a commit."""

    def do_GET(self):
        self.answer({}, 401 if self.server.refuses else 200)

    def do_POST(self):
        length = self.headers.get("Content-Length")
        body = self.rfile.read(int(length)) if length else b"".join(self.chunks())
        if self.server.refuses:
            self.answer({"error": "Invalid user token."}, 401)
        elif self.path == "/api/repos/create":
            self.answer({"url": f"{self.server.address}/me/plays"})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            mode = {"uploadMode": "regular", "shouldIgnore": False}
            entries = [{"path": file["path"], **mode} for file in files]
            self.answer({"files": entries})
        elif "/commit/" not in self.path:  # such as a check of the card's YAML
            self.answer({"errors": [], "warnings": []})
        else:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.files[line["value"]["path"]] = content
            self.answer({"commitUrl": f"{self.server.address}/me/plays/commit/1", "commitOid": "1"})

    def chunks(self):
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def answer(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def endpoint(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.address = f"http://127.0.0.1:{server.server_port}"
    server.files, server.refuses = {}, False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield server
    server.shutdown()


def test_a_pushed_model_is_the_saved_one_with_a_card(endpoint, tmp_path):
    model = tiny.model("llama")
    glassformer.save(model, tmp_path / "saved")
    assert glassformer.push(model, "me/plays").endswith("me/plays")
    for path in (tmp_path / "saved").iterdir():
        assert endpoint.files[path.name] == path.read_bytes()
    card = endpoint.files["README.md"].decode()
    count = sum(weight.numel() for weight in model.parameters())
    assert f"{count:,} parameters in float32" in card
    assert "`transformers` opens it as LlamaForCausalLM." in card
    assert 'glassformer.load("me/plays")' in card
    endpoint.files.clear()
    assert main(["convert", str(tmp_path / "saved"), "--push", "me/plays"]) == 0
    assert "model.safetensors" in endpoint.files
    assert main(["convert", str(tmp_path / "saved"), "--push", "me/plays", "--out", "x"]) == 2


def test_a_model_of_no_published_layout_has_another_card(tmp_path):
    model = tiny.model("glass")
    model.labels = ("good", "bad")
    glassformer.save(model, tmp_path)
    card = hub.card(model, "me/plays", tmp_path)
    assert "library_name: glassformer" in card and "Labels: good, bad." in card
    assert "opens it as" not in card


def test_a_hub_that_refuses_is_one_sentence(endpoint):
    endpoint.refuses = True
    with mistake("The hub does not take me/plays .*hf auth login"):
        glassformer.push(tiny.model("llama"), "me/plays")
    with mistake("The hub does not take a/b/c"):
        glassformer.push(tiny.model("llama"), "a/b/c")


def test_a_hub_that_cannot_be_reached_is_one_sentence(endpoint):
    endpoint.shutdown()
    endpoint.server_close()
    with mistake("The hub gave no answer"):
        glassformer.push(tiny.model("llama"), "me/plays")
