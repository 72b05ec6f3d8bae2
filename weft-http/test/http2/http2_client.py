"""Clients of HTTP/2 that break one rule or limit each: `http2_client.py PORT SCENARIO`.

A scenario prints what became of it, one word or number after the other; the test compares. Frames are made by hand or by
hyperframe, fields by hpack (both come with python3-h2)."""

import select
import socket
import struct
import sys
import time

import hpack
from hyperframe.frame import Frame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
CODES = "NO_ERROR PROTOCOL_ERROR INTERNAL_ERROR FLOW_CONTROL_ERROR SETTINGS_TIMEOUT STREAM_CLOSED FRAME_SIZE_ERROR REFUSED_STREAM CANCEL COMPRESSION_ERROR CONNECT_ERROR ENHANCE_YOUR_CALM".split()


def frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload


class Client:
    """One connection. `closed` is set when the server has ended it, `goaway` when it has said why."""

    def __init__(self, port, settings=None, preface=True):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()
        self.buffer, self.frames, self.closed, self.goaway = b"", [], False, None
        self.resets, self.statuses, self.bodies, self.ended = {}, {}, {}, set()
        self.next = 1
        if preface:
            payload = b"".join(struct.pack("!HI", k, v) for k, v in (settings or {}).items())
            self.send(PREFACE + frame(SETTINGS, 0, 0, payload))

    def send(self, data):
        if self.closed:
            return
        try:
            self.sock.sendall(data)
        except OSError:
            self.closed = True

    def read(self, seconds=0.0):
        """Take in what comes within that time."""
        end = time.monotonic() + seconds
        while not self.closed:
            left = max(0.0, end - time.monotonic())
            if not select.select([self.sock], [], [], left)[0]:
                break
            try:
                data = self.sock.recv(65536)
            except OSError:
                data = b""
            if not data:
                self.closed = True
                break
            self.buffer += data
            self.parse()

    def parse(self):
        while len(self.buffer) >= 9:
            header, size = Frame.parse_frame_header(memoryview(self.buffer[:9]))
            if len(self.buffer) < 9 + size:
                return
            kind, flags = self.buffer[3], self.buffer[4]
            payload, self.buffer = self.buffer[9 : 9 + size], self.buffer[9 + size :]
            stream = header.stream_id
            self.frames.append((kind, flags, stream, payload))
            if kind == GOAWAY:
                self.goaway = CODES[struct.unpack("!I", payload[4:8])[0]]
            elif kind == RST:
                self.resets[stream] = CODES[struct.unpack("!I", payload)[0]]
            elif kind == HEADERS:
                fields = dict(self.decoder.decode(payload))
                self.statuses[stream] = fields.get(":status", "?")
            elif kind == DATA:
                self.bodies[stream] = self.bodies.get(stream, b"") + payload
            if kind in (DATA, HEADERS) and flags & 1:
                self.ended.add(stream)

    def until(self, condition, seconds=10):
        end = time.monotonic() + seconds
        while not condition() and not self.closed and time.monotonic() < end:
            self.read(0.05)
        return condition()

    def head(self, path="/hello", method="GET", extra=(), fields=None):
        if fields is None:
            fields = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost")] + list(extra)
        return self.encoder.encode(fields, huffman=False)

    def request(self, path="/hello", end=True, **more):
        stream, self.next = self.next, self.next + 2
        self.send(frame(HEADERS, 4 | (1 if end else 0), stream, self.head(path, **more)))
        return stream

    def wait_closed(self, seconds=10):
        start = time.monotonic()
        self.until(lambda: False, seconds)
        return time.monotonic() - start


def end_of(client, seconds=10):
    client.wait_closed(seconds)
    print(client.goaway or "-", "closed" if client.closed else "open")


def flood(port, make, count, batch=50):
    """Send frames until the server has had enough; say how it ended and whether before all were sent."""
    client = Client(port)
    stream = client.request("/sleep")
    sent = 0
    while sent < count and not client.closed and client.goaway is None:
        client.send(b"".join(make(stream, sent + i) for i in range(batch)))
        sent += batch
        client.read(0)
    client.until(lambda: client.goaway is not None, 3)
    client.wait_closed(5)
    print(client.goaway or "-", "closed" if client.closed else "open", "cut" if sent < count else "all")


def scenario_good(port):
    c = Client(port)
    a, b, big = c.request("/hello"), c.request("/nothing"), c.request("/large", method="HEAD")
    up = c.request("/echo", method="POST", end=False)
    c.send(frame(DATA, 8, up, bytes([3]) + b"one" + bytes(3)) + frame(DATA, 1, up, b"two"))
    c.until(lambda: {a, b, big, up} <= c.ended)
    print(c.statuses[a], c.bodies[a].decode(), c.statuses[b], c.statuses[big], c.bodies[up].decode())


def scenario_trailers(port):
    c = Client(port)
    s = c.request("/sum", method="POST", end=False, extra=[("content-length", "4")])
    c.send(frame(DATA, 0, s, b"four") + frame(HEADERS, 5, s, c.encoder.encode([("x-sum", "1")])))
    c.until(lambda: s in c.ended)
    print(c.statuses[s], c.bodies[s].decode())


def scenario_rapid_reset(port):
    c = Client(port)
    start = time.monotonic()
    sent = 0
    while sent < 3000 and not c.closed and c.goaway is None:
        for _ in range(15):
            s = c.request("/file")
            c.send(frame(RST, 0, s, struct.pack("!I", 8)))
            sent += 1
        c.read(0)
        time.sleep(0.01)
    end_of(c, 5)
    print("cut" if sent < 3000 else "all")


def scenario_some_resets(port):
    c = Client(port)
    streams = [c.request("/sleep") for _ in range(50)]
    time.sleep(0.2)
    for s in streams:
        c.send(frame(RST, 0, s, struct.pack("!I", 8)))
    time.sleep(0.5)
    s = c.request("/running")
    c.until(lambda: s in c.ended)
    print(c.bodies[s].decode())


def scenario_window_zero(port):
    clients = [Client(port, {4: 0}) for _ in range(20)]
    for c in clients:
        for _ in range(100):
            c.request("/file")
    start = time.monotonic()
    ping = 0
    print("started", flush=True)
    while time.monotonic() - start < 15 and not all(c.closed for c in clients):
        for c in clients:
            c.read(0)
        if time.monotonic() - ping > 0.5:
            ping = time.monotonic()
            for c in clients:
                c.send(frame(PING, 0, 0, b"12345678"))
        time.sleep(0.05)
    print(sum(c.closed for c in clients), sorted({c.goaway or "-" for c in clients})[0])


def scenario_window_little(port):
    """A byte of each of 100 files, then nothing."""
    c = Client(port, {4: 1})
    for _ in range(100):
        c.request("/file")
    print("started", flush=True)
    c.wait_closed(15)
    print("closed" if c.closed else "open")


def scenario_one_stalls(port):
    """One stream stalls while others go on: only that one ends."""
    c = Client(port, {4: 1000})
    stalled = c.request("/file")
    start = time.monotonic()
    while stalled not in c.resets and not c.closed and time.monotonic() - start < 15:
        s = c.request("/hello")
        c.until(lambda: s in c.ended)
        time.sleep(0.1)
    s = c.request("/hello")
    c.until(lambda: s in c.ended)
    print(c.resets.get(stalled), c.statuses.get(s))


def scenario_ping_flood(port):
    flood(port, lambda s, i: frame(PING, 0, 0, b"12345678"), 200000, 200)


def scenario_settings_flood(port):
    flood(port, lambda s, i: frame(SETTINGS), 200000, 200)


def scenario_priority_flood(port):
    flood(port, lambda s, i: frame(PRIORITY, 0, s, bytes(5)), 500000, 500)


def scenario_window_flood(port):
    flood(port, lambda s, i: frame(WINDOW, 0, 0, struct.pack("!I", 1)), 500000, 500)


def scenario_stream_window_flood(port):
    flood(port, lambda s, i: frame(WINDOW, 0, s, struct.pack("!I", 1)), 500000, 500)


def scenario_unknown_flood(port):
    flood(port, lambda s, i: frame(99, 0, s, b""), 200000, 200)


def scenario_empty_data_flood(port):
    c = Client(port)
    s = c.request("/sum", method="POST", end=False)
    for _ in range(1000):
        c.send(frame(DATA, 0, s, b""))
    end_of(c, 5)


def scenario_made_resets(port):
    """Make the server reset streams instead: window updates of nothing."""
    c = Client(port)
    for _ in range(1000):
        s = c.request("/sleep")
        c.send(frame(WINDOW, 0, s, bytes(4)))
        c.read(0)
        if c.goaway or c.closed:
            break
    end_of(c, 5)


def scenario_continuation_flood(port):
    c = Client(port)
    c.send(frame(HEADERS, 0, 1, c.head("/hello")))
    piece = hpack.Encoder().encode([("x-large", "v" * 900)], huffman=False)
    for _ in range(10000):
        c.send(frame(CONTINUATION, 0, 1, piece))
        c.read(0)
        if c.goaway or c.closed:
            break
    end_of(c, 5)


def scenario_empty_continuations(port):
    c = Client(port)
    c.send(frame(HEADERS, 0, 1, c.head("/hello")))
    for _ in range(1000):
        c.send(frame(CONTINUATION, 0, 1, b""))
    end_of(c, 5)


def scenario_interrupted_block(port):
    c = Client(port)
    c.send(frame(HEADERS, 0, 1, c.head("/hello")) + frame(PING, 0, 0, bytes(8)))
    end_of(c, 5)


def scenario_large_fields(port):
    """A small block that is large when decoded: one field, referred to again and again."""
    c = Client(port)
    first = c.request("/hello", extra=[("x-large", "v" * 3000)])
    c.until(lambda: first in c.ended)
    s = c.request("/hello", extra=[("x-large", "v" * 3000)] * 30)
    c.until(lambda: s in c.ended)
    print(c.statuses[first], c.statuses[s])


def scenario_too_many_streams(port):
    c = Client(port)
    for _ in range(130):
        c.request("/sleep")
    c.until(lambda: len(c.resets) >= 30, 5)
    print(len(c.resets), sorted(set(c.resets.values()))[0], c.goaway or "-")


def scenario_half_preface(port):
    c = Client(port, preface=False)
    c.send(PREFACE[:10])
    print("closed" if c.wait_closed(8) < 7 and c.closed else "open")


def scenario_wrong_preface(port):
    c = Client(port, preface=False)
    c.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    end_of(c, 5)


def scenario_half_frame(port):
    """Half a frame, and the rest never."""
    c = Client(port)
    c.send(frame(PING, 0, 0, bytes(8))[:12])
    seconds = c.wait_closed(8)
    print(c.goaway, "closed" if c.closed and seconds < 7 else "open")


def scenario_half_block(port):
    """Half a header block, and pings are not allowed in it: silence."""
    c = Client(port)
    c.send(frame(HEADERS, 0, 1, c.head("/hello")))
    seconds = c.wait_closed(8)
    print(c.goaway, "closed" if c.closed and seconds < 7 else "open")


def scenario_idle_with_pings(port):
    c = Client(port)
    start = time.monotonic()
    while not c.closed and time.monotonic() - start < 10:
        c.send(frame(PING, 0, 0, bytes(8)))
        c.read(0.3)
    print(c.goaway, "closed" if c.closed else "open")


def scenario_body_never_comes(port):
    c = Client(port)
    s = c.request("/sum", method="POST", end=False)
    start = time.monotonic()
    while s not in c.resets and not c.closed and time.monotonic() - start < 10:
        c.send(frame(PING, 0, 0, bytes(8)))
        c.read(0.3)
    print(c.resets.get(s) or c.goaway, "in time" if time.monotonic() - start < 8 else "late")


def scenario_not_reading(port):
    """Large windows, and a socket that is never read."""
    c = Client(port, {4: 2**31 - 1})
    c.send(frame(WINDOW, 0, 0, struct.pack("!I", 2**30)))
    for _ in range(50):
        c.request("/file")
    print("started", flush=True)
    time.sleep(7)
    c.read(40)
    print("closed" if c.closed else "open")


def reset_of(port, fields, data=None, end=True):
    c = Client(port)
    c.send(frame(HEADERS, 4 | (1 if end else 0), 1, c.head(fields=fields)))
    if data is not None:
        c.send(frame(DATA, 1, 1, data))
    c.until(lambda: 1 in c.resets or 1 in c.ended, 5)
    return c.resets.get(1) or c.statuses.get(1) or c.goaway or "-"


def scenario_malformed(port):
    good = [(":method", "GET"), (":scheme", "http"), (":path", "/hello"), (":authority", "localhost")]
    post = [(":method", "POST")] + good[1:]
    print(
        reset_of(port, good),
        reset_of(port, good + [("connection", "close")]),
        reset_of(port, good + [("te", "gzip")]),
        reset_of(port, good + [("a", "b\r\nc: d")]),
        reset_of(port, good + [(":path", "/other")]),
        reset_of(port, good[:3]),
        reset_of(port, good[1:]),
        reset_of(port, [("a", "b")] + good),
        reset_of(port, good + [("host", "other")]),
        reset_of(port, post + [("content-length", "5")], b"four", end=False),
        reset_of(port, post + [("content-length", "4"), ("content-length", "5")], b"four", end=False),
    )


def scenario_errors(port):
    """Errors of the connection."""

    def one(*frames, wait=5):
        c = Client(port)
        c.read(0.05)
        c.send(b"".join(frames))
        c.wait_closed(wait)
        return c.goaway or "-"

    print(
        one(frame(DATA, 0, 0, b"x")),
        one(frame(DATA, 0, 1, b"x")),
        one(frame(HEADERS, 5, 2, b"\x82")),
        one(frame(HEADERS, 5, 1, b"\xff\xff\xff\xff\xff\x0f")),
        one(frame(PING, 0, 0, b"short")),
        one(frame(PING, 0, 1, bytes(8))),
        one(frame(SETTINGS, 0, 0, struct.pack("!HI", 4, 2**31))),
        one(frame(SETTINGS, 0, 0, struct.pack("!HI", 5, 1))),
        one(frame(WINDOW, 0, 0, bytes(4))),
        one(frame(WINDOW, 0, 0, struct.pack("!I", 2**31 - 1))),
        one(frame(RST, 0, 1, bytes(4))),
        one(frame(PUSH, 4, 1, bytes(8))),
        one(frame(CONTINUATION, 4, 1, b"")),
        one(frame(DATA, 0, 1, b"")[:3] + b"\0" + b"\0\0\0\0\1"),
        one(struct.pack("!I", 16385)[1:] + bytes([DATA, 0]) + struct.pack("!I", 1)),
    )


def scenario_too_much_body(port):
    """More than the stream's window."""
    c = Client(port)
    s = c.request("/sleep", method="POST", end=False)
    for _ in range(5):
        c.send(frame(DATA, 0, s, bytes(16384)))
    c.until(lambda: s in c.resets, 5)
    print(c.resets.get(s))


def scenario_one_byte_segments(port):
    """All that an honest client sends, a byte at a time."""
    c = Client(port, preface=False)
    up = c.head("/sum", method="POST", extra=[("content-length", "10")])
    data = PREFACE + frame(SETTINGS) + frame(HEADERS, 0, 1, up[:5]) + frame(CONTINUATION, 4, 1, up[5:]) + frame(DATA, 0, 1, b"four") + frame(DATA, 1, 1, b"sixsix")
    for i in range(len(data)):
        c.send(data[i : i + 1])
        c.read(0.001)
    c.until(lambda: 1 in c.ended)
    print(c.statuses.get(1), c.bodies.get(1, b"").decode())


def scenario_vanish(port):
    """Clients that are gone in the middle of downloads, uploads and waits."""
    for i in range(40):
        c = Client(port)
        for _ in range(10):
            c.request("/file")
            c.request("/sleep")
            s = c.request("/sum", method="POST", end=False)
            c.send(frame(DATA, 0, s, bytes(1000)))
        c.read(0.01 * (i % 5))
        if i % 2:
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.sock.close()
    c = Client(port)
    for _ in range(50):
        s = c.request("/running")
        c.until(lambda: s in c.ended)
        if c.bodies[s] == b"1":
            break
        time.sleep(0.1)
    print(c.bodies[s].decode())


def scenario_bodies_bounded(port):
    """Many streams fill their windows, which nobody reads: the connection's window ends it."""
    c = Client(port)
    for _ in range(40):
        s = c.request("/sleep", method="POST", end=False)
        for _ in range(3):
            c.send(frame(DATA, 0, s, bytes(16384)))
        c.read(0)
    end_of(c, 5)


if __name__ == "__main__":
    globals()["scenario_" + sys.argv[2]](int(sys.argv[1]))
