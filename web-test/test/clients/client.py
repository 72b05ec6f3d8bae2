"""Python's clients of HTTP: `client.py PORT http_client|requests`. Prints "ok", or fails with what was wrong."""

import http.client
import sys

PORT = int(sys.argv[1])


def check(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: {str(found)[:200]!r} instead of {str(wanted)[:200]!r}")


def http_client():
    c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)
    c.connect()
    first = c.sock

    def ask(method, path, body=None, headers={}, **more):
        c.request(method, path, body, headers, **more)
        r = c.getresponse()
        return r.status, r.read()

    for _ in range(1000):
        check("hello", ask("GET", "/hello"), (200, b"hello"))
    check("HEAD", ask("HEAD", "/file"), (200, b""))
    check("file", ask("GET", "/file"), (200, b"x" * 3000000))
    check("range", ask("GET", "/file", headers={"Range": "bytes=5-9"}), (206, b"xxxxx"))
    check("stream", ask("GET", "/stream?n=500000"), (200, b"x" * 500000))
    check("POST", ask("POST", "/count", b"y" * 100000), (200, b"100000"))
    check("POST in chunks", ask("POST", "/count", iter([b"y" * 7000] * 30)), (200, b"210000"))
    check("echo", ask("POST", "/echo", iter([b"one ", b"two"])), (200, b"one two"))
    check("unread", ask("POST", "/unread", b"y" * 30000), (200, b"unread"))
    check("empty body", ask("POST", "/count", b""), (200, b"0"))
    for k in (204, 304, 404, 500):
        check("status", ask("GET", f"/status?k={k}"), (k, b"" if k in (204, 304) else b"body"))
    check("PUT", ask("PUT", "/count", "text"), (200, b"4"))
    check("the same connection", c.sock is first, True)
    fields = ask("GET", "/fields", headers={"X-One": "1", "Cookie": "a=b"})[1].decode().lower()
    check("fields", "x-one: 1" in fields and "cookie: a=b" in fields, True)
    check("large and unread", ask("POST", "/unread", b"y" * 60000)[0], 200)
    # HTTP/1.0, which ends with the connection unless asked otherwise.
    c.close()
    old = http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)
    old._http_vsn, old._http_vsn_str = 10, "HTTP/1.0"
    for headers, kept in (({}, False), ({"Connection": "keep-alive"}, True)):
        old.connect()
        before = old.sock
        old.request("GET", "/hello", headers=headers)
        r = old.getresponse()
        check("HTTP/1.0", r.read(), b"hello")
        check("HTTP/1.0 kept", old.sock is before, kept)
    old.close()


def requests():
    import requests as r

    base = f"http://127.0.0.1:{PORT}"
    with r.Session() as s:
        s.trust_env = False
        for _ in range(200):
            check("hello", s.get(base + "/hello", timeout=20).text, "hello")
        check("post", s.post(base + "/count", data=b"y" * 50000, timeout=20).text, "50000")
        check("generator", s.post(base + "/count", data=(b"y" * 1000 for _ in range(50)), timeout=20).text, "50000")
        check("multipart", int(s.post(base + "/count", files={"f": b"y" * 5000}, timeout=20).text) > 5000, True)
        with s.get(base + "/stream?n=1000000", stream=True, timeout=20) as answer:
            check("stream", sum(len(piece) for piece in answer.iter_content(777)), 1000000)
        # Left in the middle.
        with s.get(base + "/file", stream=True, timeout=20) as answer:
            check("beginning", len(next(answer.iter_content(1000))), 1000)
        check("404", s.get(base + "/nothing", timeout=20).status_code, 404)
        check("drip", s.get(base + "/drip?n=5", timeout=20).text, "1\n2\n3\n4\n5\n")


globals()[sys.argv[2]]()
print("ok")
