"""Who is let in, and what every answer forbids the page."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="the page needs its extra: pip install -e '.[page]'")
pytest.importorskip("httpx", reason="tests of the page need httpx")

from starlette.testclient import TestClient

import served
from glassformer.serve.asgi.security import LOOPBACK, host_name, is_loopback
from glassformer.serve.page.routes import Page, application


@pytest.fixture(scope="module")
def page():
    return served.page()


def ask(
    page,
    method="GET",
    path="/api/models",
    token=None,
    **headers,
):
    """The status of a request with these headers."""
    hosts = None if token else frozenset(LOOPBACK)
    client = TestClient(
        application(page, hosts, token), "http://127.0.0.1:8642", raise_server_exceptions=False
    )
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = client.request(
        method, path, headers=named, content=b"{}" if method == "POST" else None
    )
    if answer.status_code >= 400:
        assert answer.json()["error"].endswith("."), answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    return answer.status_code


def test_only_our_own_names_are_answered(page):
    for host in ("127.0.0.1:8642", "localhost:8642", "localhost", "[::1]:8642"):
        assert ask(page, host=host) == 200, host
    for host in ("evil.example", "127.0.0.1.evil.example:8642", "", "localhost.evil.example"):
        assert ask(page, host=host) == 403, host


def test_no_other_page_may_ask(page):
    json = "application/json"
    assert ask(page, "POST", "/api/runs", content_type=json) == 404, "let in; nothing has that name"
    assert ask(page, "POST", "/api/runs", content_type=json, origin="http://127.0.0.1:8642") == 404
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8642"):
        assert ask(page, "POST", "/api/runs", content_type=json, origin=origin) == 403, origin
    individual = "http://127.0.0.1:8642"
    for origin in (
        f"{individual}.evil.example",
        f"{individual}0",
        f"{individual}@evil.example",
        individual[:-1],
        "http://127.0.0.1",
        "http://127",
    ):
        assert ask(page, "POST", "/api/runs", content_type=json, origin=origin) == 403, origin
    assert ask(page, sec_fetch_site="cross-site") == 403
    assert ask(page, sec_fetch_site="same-origin") == 200


OWN = "127.0.0.1:8642"
FORGED = [
    {"host": "127.0.0.1:\u00b2"},
    {"host": "127.0.0.1:8642@evil.example"},
    {"host": "localhost."},
    {"host": "127.1"},
    {"host": "0.0.0.0:8642"},
    {"host": "[::ffff:127.0.0.1]:8642"},
    {"host": ""},
    {"origin": ""},
    {"origin": f"//{OWN}"},
    {"origin": f"ftp://{OWN}"},
    {"origin": f"evil://{OWN}"},
    {"origin": f"http://{OWN}/"},
    {"origin": f"http://evil.example@{OWN}"},
    {"origin": f"http://{OWN}, http://evil.example"},
    {"referer": "http://evil.example/"},
    {"referer": f"http://{OWN}.evil.example/"},
    {"referer": f"http://{OWN}@evil.example/"},
    {"referer": f"http://evil.example/?http://{OWN}/"},
    {"referer": "http://127.0.0.1:9999/"},
    {"referer": "about:blank"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
    {"sec-fetch-site": "Cross-Site"},
    {"sec-fetch-site": "x"},
]


def test_forged_headers_reach_no_route_that_posts(page):
    """Each form on each route; two headers of a name that says who asks are refused, too."""
    client = TestClient(application(page, frozenset(LOOPBACK)), f"http://{OWN}")
    routes = [route.path for route in page.routes() if "POST" in route.methods]
    assert len(routes) >= 9
    plain = {"content-type": "application/json", "host": OWN}
    forms = [[*(plain | form).items()] for form in FORGED]
    origins = [("origin", f"http://{OWN}"), ("origin", "http://evil.example")]
    forms += [
        [*plain.items(), *origins],
        [*plain.items(), ("host", "evil.example")],
        [*plain.items(), ("content-type", "text/plain")],
    ]
    for path in routes:
        for form in forms:
            sent = [(name.encode(), value.encode("latin-1")) for name, value in form]
            assert client.post(path, content=b"{}", headers=sent).status_code == 403, (path, form)
    allowed = {
        **plain,
        "origin": f"http://{OWN}",
        "referer": f"http://{OWN}/",
        "sec-fetch-site": "same-origin",
    }
    for headers in (plain, allowed, {**plain, "referer": f"http://{OWN}/"}):
        assert client.post("/api/runs", content=b"{}", headers=headers).status_code == 404


def test_a_form_cannot_post(page):
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "",
        "application/jsonp",
    ):
        assert ask(page, "POST", "/api/runs", content_type=kind) == 415, kind
    assert ask(page, "PUT", "/api/runs", content_type="application/json") == 405
    assert ask(page, "DELETE", "/api/models") == 405


def test_elsewhere_the_link_holds_a_secret(page):
    assert ask(page, token="secret") == 403
    assert ask(page, path="/api/models?token=wrong", token="secret") == 403
    assert (
        ask(page, path="/api/models?token=secret", token="secret", host="laptop.local:8642") == 200
    )
    client = TestClient(application(page, None, "secret"), "http://laptop.local:8642")
    assert client.get("/api/models").status_code == 403
    first = client.get("/?token=secret")
    assert "HttpOnly" in first.headers["set-cookie"]
    assert "SameSite=Strict" in first.headers["set-cookie"]
    assert client.get("/api/models").status_code == 200, "the cookie is enough from now on"


def test_every_answer_says_what_the_page_may_load(page):
    item = served.client(page)
    for path in ("/", "/api/models", "/nothing", "/api/runs/r_0/t"):
        headers = item.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'self'")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers


def test_types_of_what_is_sent(page):
    item = served.client(page)
    assert item.get("/").headers["content-type"] == "text/html; charset=utf-8"
    assert item.get("/api/models").headers["content-type"] == "application/json"
    body = item.post("/api/runs", json={"model": "tiny-page", "text": "O Romeo"}).json()
    tensor = item.get(f"/api/runs/{body['run']}/t?address=logits")
    assert tensor.headers["content-type"] == "application/x-safetensors"
    script = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
    for name, path in page.static.items():
        answer = item.get(f"/{name}")
        assert answer.content == path.read_bytes()
        if path.suffix in script:
            assert answer.headers["content-type"] == script[path.suffix]


def test_only_listed_files_are_opened(tmp_path):
    """Files of the build's folder are served by name; nothing above it, nothing of another kind."""
    static = tmp_path / "static"
    static.mkdir()
    (static / "index.html").write_text("<p>here")
    (static / "app.js").write_text("1")
    (static / "secret.key").write_text("no")
    (tmp_path / "above.txt").write_text("no")
    from glassformer.serve.page.models import Models

    item = served.client(Page(Models([]), static=static))
    assert item.get("/").text == "<p>here"
    assert item.get("/app.js").text == "1"
    for path in (
        "/secret.key",
        "/../above.txt",
        "/..%2fabove.txt",
        "/%2e%2e/above.txt",
        "/static/app.js",
        "/.gitkeep",
    ):
        assert item.get(path).status_code == 404, path


def test_hosts():
    assert host_name("LocalHost:80") == "localhost"
    assert host_name("[::1]:80") == "[::1]"
    assert host_name("a") == "a"
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
