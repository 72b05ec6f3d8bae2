"""Clients on raw sockets that behave as no library would: `rude_client.py PORT SCENARIO`. Each prints what became of it."""

import hashlib
import random
import socket
import struct
import sys
import threading
import time

PORT = int(sys.argv[1])


def connect(window=0):
    s = socket.socket()
    if window:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    s.settimeout(30)
    s.connect(("127.0.0.1", PORT))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def request(path="/hello", method="GET", *fields):
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *fields, "", ""]).encode()


def to_end(s):
    """All that comes until the end of the stream."""
    pieces = []
    while True:
        try:
            piece = s.recv(65536)
        except ConnectionError:
            return b"".join(pieces) + b"RESET"
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


class Reader:
    """Answers with a length or in chunks, one after the other."""

    def __init__(self, s, size=65536, pause=0.0):
        self.s, self.size, self.pause, self.have = s, size, pause, b""

    def more(self):
        piece = self.s.recv(self.size)
        if not piece:
            raise EOFError(self.have[:200])
        self.have += piece
        if self.pause:
            time.sleep(self.pause)

    def until(self, end):
        while end not in self.have:
            self.more()
        found, self.have = self.have.split(end, 1)
        return found

    def exactly(self, n):
        pieces, left = [], n
        while left:
            if not self.have:
                self.more()
            piece, self.have = self.have[:left], self.have[left:]
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    def answer(self):
        lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines[1:])}
        status = int(lines[0].split(" ")[1])
        if fields.get("transfer-encoding") == "chunked":
            pieces = []
            while True:
                size = int(self.until(b"\r\n"), 16)
                pieces.append(self.exactly(size))
                self.exactly(2)
                if size == 0:
                    return status, b"".join(pieces)
        return status, self.exactly(int(fields.get("content-length", "0")))


def pipelined_slow():
    """100 requests in one segment, 10 MB of answers, read 20 KB at a time with pauses: longer than the server's time."""
    s = connect(window=32768)
    s.sendall(b"".join(request(f"/large?n={100000 + i}") for i in range(100)))
    r, start = Reader(s, 20000, 0.01), time.monotonic()
    good = sum(r.answer() == (200, b"x" * (100000 + i)) for i in range(100))
    print(good, "slowly" if time.monotonic() - start > 1.2 else "fast")


def pipelined_many():
    """20,000 requests, sent by one thread and read by another, of which a few have bodies."""
    s = connect()
    batch = request() * 7 + request("/count", "POST", "Content-Length: 5") + b"bytes" + request("/count", "POST", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n" + request("/nothing")
    sender = threading.Thread(target=lambda: [s.sendall(batch) for _ in range(2000)])
    sender.start()
    r, good = Reader(s), 0
    wanted = [(200, b"hello")] * 7 + [(200, b"5"), (200, b"3"), (404, b"not here")]
    for _ in range(2000):
        good += sum(r.answer() == w for w in wanted)
    sender.join()
    print(good)


def byte_by_byte():
    s = connect()
    r = Reader(s)
    whole = request("/count", "POST", "Content-Length: 12") + b"twelve bytes" + request("/count", "POST", "Transfer-Encoding: chunked") + b"5;a=b\r\nhello\r\n0\r\nA: b\r\n\r\n" + request("/hello")
    for i in range(len(whole)):
        s.sendall(whole[i : i + 1])
    print(*(r.answer()[1].decode() for _ in range(3)))


def half_closed():
    """Clients that shut down their sending side behind their last request get all that they asked for, and then the end."""
    found = []
    for whole in (
        request("/hello"),
        request("/hello") * 5,
        request("/count", "POST", "Content-Length: 5") + b"bytes",
        request("/echo", "POST", "Transfer-Encoding: chunked") + b"5\r\nbytes\r\n0\r\n\r\n",
        request("/large?n=5000000"),
        request("/drip?n=10"),
        request("/slow?n=300"),
        request("/file"),
    ):
        s = connect()
        s.sendall(whole)
        s.shutdown(socket.SHUT_WR)
        got = to_end(s)
        found.append(got.count(b"HTTP/1.1 200 OK"))
        if got.endswith(b"RESET"):
            found.append("RESET")
        s.close()
    print(*found)


def half_requests():
    """Clients that shut down their sending side within a request are let go without an answer of 200."""
    found = []
    for whole in (b"", b"GE", request()[:-2], request("/count", "POST", "Content-Length: 5") + b"byt", request("/count", "POST", "Transfer-Encoding: chunked") + b"5\r\nby"):
        s = connect()
        s.sendall(whole)
        s.shutdown(socket.SHUT_WR)
        start = time.monotonic()
        got = to_end(s)
        found.append(got.split(b"\r\n")[0].decode() or "-")
        if time.monotonic() - start > 5:
            found.append("late")
        s.close()
    print(*found)


def slow_upload():
    """Honest: 1,400 bytes each 250 ms, which is more than is asked for, for four times the server's time."""

    def one(head, pieces, found, i):
        s = connect()
        s.sendall(head)
        for piece in pieces:
            time.sleep(0.25)
            s.sendall(piece)
        found[i] = Reader(s).answer()[1].decode()

    data = [b"y" * 1400] * 18
    cases = [
        (request("/count", "POST", f"Content-Length: {1400 * 18}"), data),
        (request("/count", "POST", "Transfer-Encoding: chunked"), [b"578\r\n" + d + b"\r\n" for d in data] + [b"0\r\n\r\n"]),
        (request("/hash", "POST", f"Content-Length: {1400 * 18}"), data),
    ]
    found = [""] * len(cases)
    threads = [threading.Thread(target=one, args=(*case, found, i)) for i, case in enumerate(cases)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    print(found[0], found[1], found[2] == hashlib.sha256(b"".join(data)).hexdigest())


def slow_download():
    """Honest: at most 800 KB/s through a small window, for many times the server's time. The server's kernel holds a part of it."""

    def one(path, found, i):
        s = connect(window=32768)
        s.sendall(request(path))
        start = time.monotonic()
        try:
            status, body = Reader(s, 12000, 0.015).answer()
            found[i] = f"{len(body)}"
        except Exception as e:
            found[i] = type(e).__name__
        if time.monotonic() - start < 4:
            found[i] += " fast"

    paths = ["/large?n=6000000", "/stream?n=6000000", "/file"]
    found = [""] * len(paths)
    threads = [threading.Thread(target=one, args=(path, found, i)) for i, path in enumerate(paths)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    print(*found)


def very_slow_download():
    """Honest: some 60 KB/s, 20 KiB/s are asked for, of much more than the server's kernel takes at once, for six times the server's
    time; then they read on as they can."""

    def one(path, found, i):
        s = connect(window=8192)
        s.sendall(request(path))
        start, got = time.monotonic(), 0
        try:
            while time.monotonic() - start < 6:
                got += len(s.recv(3000))
                time.sleep(0.05)
            slow = got < 1000000
            while got < 20000000:
                piece = s.recv(65536)
                if not piece:
                    break
                got += len(piece)
            found[i] = "whole" if slow and got >= 20000000 else f"{got}"
        except Exception as e:
            found[i] = f"{type(e).__name__} {got}"
        reset(s)

    paths = ["/large?n=20000000", "/stream?n=20000000"]
    found = [""] * len(paths)
    threads = [threading.Thread(target=one, args=(path, found, i)) for i, path in enumerate(paths)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    print(*found)


def many(act, count, at_once=8):
    numbers = iter(range(count))
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                i = next(numbers, None)
            if i is None:
                return
            act(i)

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    print(count)


def abort_responses():
    def one(i):
        s = connect(window=0 if i % 4 else 4096)
        s.sendall(request(random.Random(i).choice(["/file", "/large?n=20000000", "/stream?n=20000000", "/drip?n=100", "/slow?n=100"])) * (1 + i % 3))
        if i % 2:
            s.recv(1 + i * 100 % 20000)
        reset(s) if i % 3 else s.close()

    many(one, 600)


def abort_uploads():
    def one(i):
        s = connect()
        s.sendall(random.Random(i).choice([request("/count", "POST", "Content-Length: 1000000"), request("/echo", "POST", "Transfer-Encoding: chunked") + b"fffff\r\n", request("/hash", "POST", "Content-Length: 1000000", "Expect: 100-continue")]))
        s.sendall(b"y" * (i * 37 % 50000))
        reset(s) if i % 3 else s.close()

    many(one, 600)


def abort_heads():
    def one(i):
        s = connect()
        s.sendall((request() * 3)[: i % 130])
        reset(s) if i % 3 else s.close()

    many(one, 2000)


def nothing_read():
    """They ask for much, read nothing, and stay: the server lets go of them. Other clients are served."""
    sockets = []
    for i in range(100):
        s = connect(window=4096)
        s.sendall(request(["/file", "/large?n=20000000", "/stream?n=20000000"][i % 3]))
        sockets.append(s)
    good = 0
    for _ in range(50):
        s = connect()
        s.sendall(request())
        good += Reader(s).answer() == (200, b"hello")
        s.close()
        time.sleep(0.02)
    ended = 0
    for s in sockets:
        s.settimeout(10)
        try:
            ended += 1 if to_end(s) else 0
        except socket.timeout:
            pass
    print(good, ended)


def upgrades_refused():
    """Fields of upgrades that nobody offers are passed over."""
    s = connect()
    r = Reader(s)
    s.sendall(request("/hello", "GET", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"))
    first = r.answer()
    s.sendall(request("/hello", "GET", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="))
    second = r.answer()
    s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    print(first[0], second[0], r.answer()[0], len(to_end(s)))


def silent():
    """Connections that never say anything are closed, one that is honest beside them is not."""
    sockets = [connect() for _ in range(300)]
    s = connect()
    r = Reader(s)
    good = 0
    for _ in range(20):
        s.sendall(request())
        good += r.answer() == (200, b"hello")
        time.sleep(0.1)
    print(good, sum(to_end(x) == b"" for x in sockets))


globals()[sys.argv[2]]()
