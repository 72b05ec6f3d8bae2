"""Clients of HTTP/2 that break one rule or limit each: `http2_client.py PORT SCENARIO`.

A scenario prints its outcome as a few words and numbers, which the test compares. Frames are built by hand and parsed
by hyperframe; header blocks are coded by hpack (both come with python3-h2)."""

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
    """One connection. `closed` is set when the server has ended it; `goaway` is the error code of its GOAWAY frame."""

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
            # The server has closed the connection. What it sent before can still be read.
            self.read(1)
            self.closed = True

    def read(self, seconds=0.0):
        """Receive and parse frames for that time."""
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

    def until(self, condition, seconds=40):
        """Read until the condition holds, the server ends the connection, or the time is over. The time is for a slow
        machine: what has to happen sooner is measured."""
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

    def wait_closed(self, seconds=40):
        start = time.monotonic()
        self.until(lambda: False, seconds)
        return time.monotonic() - start


def end_of(client, seconds=40):
    client.wait_closed(seconds)
    print(client.goaway or "-", "closed" if client.closed else "open")


def flood(port, make, count, batch=50):
    """Send frames until the server ends the connection. Print the error, and `cut` if not all frames could be sent."""
    client = Client(port)
    stream = client.request("/sleep")
    sent = 0
    while sent < count and not client.closed and client.goaway is None:
        client.send(b"".join(make(stream, sent + i) for i in range(batch)))
        sent += batch
        client.read(0)
    client.until(lambda: client.goaway is not None)
    client.wait_closed()
    print(client.goaway or "-", "closed" if client.closed else "open", "cut" if sent < count else "all")


def running(client):
    """The number of applications that run, when it is 1, that of this request itself, or after some seconds."""
    for _ in range(100):
        s = client.request("/running")
        client.until(lambda: s in client.ended)
        if client.bodies.get(s) == b"1":
            break
        time.sleep(0.1)
    return client.bodies.get(s, b"-").decode()


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


def size_updates(block):
    """The sizes of the table at the beginning of a header block (RFC 7541, 6.3)."""
    sizes, at = [], 0
    while at < len(block) and block[at] & 0xE0 == 0x20:
        size, at, shift = block[at] & 0x1F, at + 1, 0
        while shift or size == 31:
            size, shift, at = size + ((block[at] & 0x7F) << shift), shift + 7, at + 1
            if block[at - 1] < 0x80:
                break
        sizes.append(size)
    return sizes


def scenario_table_sizes(port):
    """SETTINGS_HEADER_TABLE_SIZE changes between two header blocks, in one frame or several: RFC 7541, 4.2."""
    for frames in [[[0], [4096]], [[0, 4096]], [[64], [4096]], [[0], [100]], [[0], [8192]], [[100], [0], [4096]], [[100]], [[8192]]]:
        c = Client(port)
        for _ in range(2):
            before = c.request()
            c.until(lambda: before in c.ended)
        c.send(b"".join(frame(SETTINGS, 0, 0, b"".join(struct.pack("!HI", 1, size) for size in sizes)) for sizes in frames))
        # This evicts.
        c.decoder.header_table_size = min(min(sizes) for sizes in frames + [[4096]])
        stream = c.request()
        c.until(lambda: stream in c.ended)
        block = [payload for kind, _, number, payload in c.frames if kind == HEADERS and number == stream][0]
        print(",".join(map(str, size_updates(block))), c.statuses[stream])


def scenario_late_trailers(port):
    """Uploads that the server ends early, 50 at once, 400 in all. Trailers that arrive afterwards are not an error, and
    not a reset by the client; more fields after them are an error."""
    c = Client(port)
    for _ in range(8):
        streams = [c.request("/late", method="POST", end=False) for _ in range(50)]
        c.until(lambda: c.goaway or all(s in c.resets for s in streams))
        c.send(b"".join(frame(DATA, 0, s, b"four") + frame(HEADERS, 5, s, c.encoder.encode([("x-sum", "1")])) for s in streams))
    after = c.request("/hello")
    c.until(lambda: after in c.ended)
    found = sorted(set(c.resets.values()))
    again = streams[-1]
    c.resets.clear()
    c.send(frame(HEADERS, 5, again, c.encoder.encode([("x-sum", "1")])))
    c.until(lambda: again in c.resets)
    print(c.goaway or "-", *found, c.statuses.get(after, "-"), c.resets.get(again, "-"))


def scenario_upload_to_exception(port):
    """A long upload to an application that throws at once: the server takes it, or tells the client to stop."""
    c = Client(port)
    for n in (300000, 9000000):
        s = c.request("/throw", method="POST", end=False)
        frames = [frame(DATA, 0, s, bytes(15000))] * (n // 15000)
        whole = upload(c, s, frames, stop=lambda: s in c.resets) == len(frames)
        print(c.statuses.get(s), s in c.ended, whole, c.resets.get(s, "-"))


def scenario_rude_applications(port):
    """What clients get from applications that break the rules: status, body, reset."""
    c = Client(port)
    for path in ("/none", "/twice", "/after", "/interim", "/line-feed", "/line-feed-in-name", "/throw", "/late", "/length-over", "/length-under", "/length-stream", "/hello"):
        s = c.request(path)
        c.until(lambda: s in c.ended or s in c.resets)
        c.read(0.1)
        heads = sum(kind == HEADERS and stream == s for kind, _, stream, _ in c.frames)
        print(path, c.statuses.get(s, "-"), heads, c.bodies.get(s, b"").decode().replace(" ", "_") or "-", c.resets.get(s, "-"))


def scenario_rapid_reset(port):
    c = Client(port)
    start = time.monotonic()
    sent = 0
    while sent < 3000 and not c.closed and c.goaway is None:
        for _ in range(15):
            # Not answered before the reset comes, however slow this client is.
            s = c.request("/sleep")
            c.send(frame(RST, 0, s, struct.pack("!I", 8)))
            sent += 1
        c.read(0)
        time.sleep(0.01)
    end_of(c)
    print("cut" if sent < 3000 else "all")


def scenario_some_resets(port):
    c = Client(port)
    streams = [c.request("/sleep") for _ in range(50)]
    time.sleep(0.2)
    for s in streams:
        c.send(frame(RST, 0, s, struct.pack("!I", 8)))
    print(running(c))


def scenario_window_zero(port):
    clients = [Client(port, {4: 0}) for _ in range(20)]
    for c in clients:
        for _ in range(100):
            c.request("/file")
    start = time.monotonic()
    ping = 0
    print("started", flush=True)
    while time.monotonic() - start < 40 and not all(c.closed for c in clients):
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
    c.wait_closed()
    print("closed" if c.closed else "open")


def scenario_one_stalls(port):
    """One stream stalls while others go on: only that one ends."""
    c = Client(port, {4: 1000})
    stalled = c.request("/file")
    start = time.monotonic()
    while stalled not in c.resets and not c.closed and time.monotonic() - start < 40:
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


def scenario_goaway_flood(port):
    flood(port, lambda s, i: frame(GOAWAY, 0, 0, bytes(8)), 200000, 200)


def scenario_acknowledgement_flood(port):
    flood(port, lambda s, i: frame(SETTINGS, 1) + frame(PING, 1, 0, bytes(8)), 200000, 200)


def scenario_reset_stream_flood(port):
    """The same stream is reset again and again."""
    flood(port, lambda s, i: frame(RST, 0, s, struct.pack("!I", 8)), 200000, 200)


def scenario_gone_quietly(port):
    """Clients that have read everything close their sending side. The server cannot notice that by sending, and must
    end their requests all the same."""
    for i in range(10):
        c = Client(port, {4: 40000})
        a = c.request("/hello")
        for _ in range(3):
            c.request("/file")
            c.request("/sleep")
        c.until(lambda: a in c.ended and sum(len(b) for b in c.bodies.values()) >= 65535)
        c.sock.shutdown(socket.SHUT_WR)
        c.until(lambda: c.closed)
    print(running(Client(port)))


def scenario_body_drips(port):
    """50 bodies, each of a byte every 300 ms, which is below the required rate."""
    c = Client(port)
    streams = [c.request("/sum", method="POST", end=False) for _ in range(50)]
    start = time.monotonic()
    while len(c.resets) < 50 and not c.closed and time.monotonic() - start < 15:
        c.send(b"".join(frame(DATA, 0, s, b"x") for s in streams if s not in c.resets))
        c.read(0.3)
    print(" ".join(sorted(set(c.resets.values()))) or c.goaway or "-", "in time" if time.monotonic() - start < 12 else "late")


def scenario_fuzz(port):
    """Mutated conversations for some seconds, and at least a hundred. Afterwards the server still serves, and no other application runs."""
    import os
    import random

    seconds = float(os.environ.get("WEFT_FUZZ_SECONDS", "4"))
    seed = int(os.environ.get("WEFT_FUZZ_SEED", "1"))
    start, count = time.monotonic(), 0
    while time.monotonic() - start < seconds or (count <= 100 and time.monotonic() - start < 60):
        count += 1
        r = random.Random(seed * 1000003 + count)
        c = Client(port, preface=False)
        frames = [frame(SETTINGS, 0, 0, struct.pack("!HI", 4, r.choice([0, 1, 1000, 65535])))]
        for stream in range(1, 2 * r.randint(1, 8), 2):
            kind = r.randrange(6)
            if kind < 3:
                frames.append(frame(HEADERS, 5, stream, c.head(r.choice(["/hello", "/file", "/nap", "/large", "/throw"]))))
            elif kind == 3:
                frames.append(frame(HEADERS, 4, stream, c.head("/sum", method="POST")))
                frames.append(frame(DATA, r.choice([0, 1, 8]), stream, bytes([r.randrange(8)]) + bytes(r.randrange(2000))))
            elif kind == 4:
                block = c.head("/hello")
                frames.append(frame(HEADERS, 1, stream, block[:7]) + frame(CONTINUATION, 4, stream, block[7:]))
            else:
                frames.append(frame(HEADERS, 5, stream, c.head("/file")) + frame(RST, 0, stream, struct.pack("!I", 8)))
            frames.append(r.choice([b"", frame(PING, 0, 0, bytes(8)), frame(WINDOW, 0, 0, struct.pack("!I", 1000)), frame(PRIORITY, 0, stream, bytes(5)), frame(SETTINGS, 1)]))
        if r.randrange(3) == 0:
            r.shuffle(frames)
        data = bytearray(b"".join(frames))
        for _ in range(r.randrange(5)):
            at = r.randrange(len(data))
            change = r.randrange(3)
            if change == 0:
                data[at] = r.randrange(256)
            elif change == 1:
                del data[at : at + r.randrange(1, 12)]
            else:
                data[at:at] = bytes(r.randrange(256) for _ in range(r.randrange(1, 12)))
            if not data:
                break
        data = (PREFACE if r.randrange(10) else PREFACE[: r.randrange(24)]) + bytes(data)
        while data:
            n = r.choice([len(data), r.randrange(1, len(data) + 1)])
            c.send(data[:n])
            data = data[n:]
        try:
            c.read(r.choice([0, 0.002, 0.01]))
        except Exception:
            # The response to a mutated conversation may be one that the decoder does not understand.
            pass
        if r.randrange(2):
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.sock.close()
        if count % 20 == 0:
            good = Client(port)
            s = good.request("/hello")
            if not good.until(lambda: s in good.ended) or good.statuses[s] != "200":
                print("a good client was not served after", count)
                return
            good.sock.close()
    print(running(Client(port)), "enough" if count > 100 else count)


def scenario_empty_data_flood(port):
    c = Client(port)
    s = c.request("/sum", method="POST", end=False)
    for _ in range(1000):
        c.send(frame(DATA, 0, s, b""))
    end_of(c)


def scenario_made_resets(port):
    """Make the server reset streams itself, by window updates of 0."""
    c = Client(port)
    for _ in range(1000):
        s = c.request("/sleep")
        c.send(frame(WINDOW, 0, s, bytes(4)))
        c.read(0)
        if c.goaway or c.closed:
            break
    end_of(c)


def scenario_continuation_flood(port):
    c = Client(port)
    c.send(frame(HEADERS, 0, 1, c.head("/hello")))
    piece = hpack.Encoder().encode([("x-large", "v" * 900)], huffman=False)
    for _ in range(10000):
        c.send(frame(CONTINUATION, 0, 1, piece))
        c.read(0)
        if c.goaway or c.closed:
            break
    end_of(c)


def scenario_empty_continuations(port):
    c = Client(port)
    c.send(frame(HEADERS, 0, 1, c.head("/hello")))
    for _ in range(1000):
        c.send(frame(CONTINUATION, 0, 1, b""))
    end_of(c)


def scenario_interrupted_block(port):
    c = Client(port)
    c.send(frame(HEADERS, 0, 1, c.head("/hello")) + frame(PING, 0, 0, bytes(8)))
    end_of(c)


def scenario_large_fields(port):
    """A small header block that is large when decoded: it refers to one field again and again."""
    c = Client(port)
    first = c.request("/hello", extra=[("x-large", "v" * 3000)])
    c.until(lambda: first in c.ended)
    s = c.request("/hello", extra=[("x-large", "v" * 3000)] * 30)
    c.until(lambda: s in c.ended)
    print(c.statuses[first], c.statuses[s])


def scenario_many_fields(port):
    """A hundred fields, the host included, are accepted, and so are cookies in any number of pieces. One field more is
    refused, also in trailers."""
    c = Client(port)
    fields = lambda n: [(f"x-{i}", "v") for i in range(n)]
    found = []
    for extra in (fields(99), fields(100), fields(98) + [("cookie", f"a{i}=b") for i in range(50)]):
        s = c.request("/hello", extra=extra)
        c.until(lambda: s in c.ended)
        found.append(c.statuses[s])
    for n in (100, 101):
        s = c.request("/sum", method="POST", end=False)
        c.send(frame(DATA, 0, s, b"four") + frame(HEADERS, 5, s, c.encoder.encode(fields(n), huffman=False)))
        c.until(lambda: s in c.ended or s in c.resets)
        found.append(c.resets.get(s) or c.statuses[s])
    print(*found)


def scenario_too_many_streams(port):
    c = Client(port)
    for _ in range(130):
        c.request("/sleep")
    c.until(lambda: len(c.resets) >= 30)
    print(len(c.resets), sorted(set(c.resets.values()))[0], c.goaway or "-")


def scenario_half_preface(port):
    c = Client(port, preface=False)
    c.send(PREFACE[:10])
    print("closed" if c.wait_closed(8) < 7 and c.closed else "open")


def scenario_wrong_preface(port):
    c = Client(port, preface=False)
    c.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    end_of(c)


def scenario_half_frame(port):
    """Half a frame; the rest never comes."""
    c = Client(port)
    c.send(frame(PING, 0, 0, bytes(8))[:12])
    seconds = c.wait_closed(8)
    print(c.goaway, "closed" if c.closed and seconds < 7 else "open")


def scenario_half_block(port):
    """Half a header block, then silence (no other frame is allowed within a block)."""
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


GET = [(":method", "GET"), (":scheme", "http"), (":path", "/hello"), (":authority", "localhost")]
POST = [(":method", "POST"), (":scheme", "http"), (":path", "/sum"), (":authority", "localhost")]
HUFFMAN = hpack.huffman.HuffmanEncoder(hpack.huffman_constants.REQUEST_CODES, hpack.huffman_constants.REQUEST_CODES_LENGTH)


def text(data, huffman=False):
    """A string of HPACK (RFC 7541, 5.2), of less than 127 bytes."""
    data = data.encode() if isinstance(data, str) else data
    coded = HUFFMAN.encode(data) if huffman else data
    return bytes([(0x80 if huffman else 0) | len(coded)]) + coded


def literal(name, value="v", kind=0x00, huffman=False):
    """A field with a literal name: 0x00 is without indexing, 0x10 never indexed, 0x40 with incremental indexing."""
    return bytes([kind]) + text(name, huffman) + text(value, huffman)


def outcome(port, fields=GET, more=b"", data=None, end=None, trailers=None, final=True, added=None):
    """Send one request of fields, more bytes of the header block, data and trailers. Return its status or its error.
    The bytes may have added a field to the server's table."""
    c = Client(port)
    whole = data is None and trailers is None
    c.send(frame(HEADERS, 4 | (1 if (whole if end is None else end) else 0), 1, c.head(fields=fields) + more))
    if data is not None:
        c.send(frame(DATA, 1 if trailers is None else 0, 1, data))
    if trailers is not None:
        c.send(frame(HEADERS, 4 | (1 if final else 0), 1, trailers))
    if added is not None:
        c.encoder.header_table.add(*added)
    c.until(lambda: 1 in c.resets or 1 in c.ended or c.goaway)
    if c.goaway:
        return "connection:" + c.goaway
    found = c.resets.get(1) or c.statuses.get(1) or "-"
    # The connection must still work.
    again = c.next = 3
    c.request("/hello")
    c.until(lambda: again in c.ended)
    return found if c.statuses.get(again) == "200" else "dead"


def without(name, fields=GET):
    return [(n, v) for n, v in fields if n != name]


def changed(name, value, fields=GET):
    return [(n, value if n == name else v) for n, v in fields]


def length(*values):
    return POST + [("content-length", v) for v in values]


def scenario_malformed(port):
    """RFC 9113, 8.2 and 8.3: a line for each case."""
    cases = [
        ("good", dict()),
        ("te_trailers", dict(fields=GET + [("te", "trailers")])),
        ("host_alone", dict(fields=without(":authority") + [("host", "localhost")])),
        ("host_the_same", dict(fields=GET + [("host", "localhost")])),
        ("cookies", dict(fields=GET + [("cookie", "a=b"), ("cookie", "c=d")])),
        ("options_star", dict(fields=changed(":method", "OPTIONS", changed(":path", "*")))),
        ("length_right", dict(fields=length("4"), data=b"four")),
        ("length_twice_the_same", dict(fields=length("4", "4"), data=b"four")),
        ("lower_case_coded", dict(more=literal("x-own", huffman=True))),
        # Names.
        ("upper_case", dict(more=literal("X-Own"))),
        ("upper_case_coded", dict(more=literal("x-oWn", huffman=True))),
        ("upper_case_known", dict(more=literal("Accept"))),
        ("upper_case_known_coded", dict(more=literal("aCCept", huffman=True))),
        ("upper_case_never_indexed", dict(more=literal("Authorization", kind=0x10))),
        ("upper_case_between", dict(more=literal("x-a", huffman=True) + literal("x-B", huffman=True) + literal("x-c"))),
        ("upper_case_into_the_table", dict(more=literal("Accept", kind=0x40), added=(b"Accept", b"v"))),
        ("upper_case_coded_into_the_table", dict(more=literal("X-Own", kind=0x40, huffman=True), added=(b"X-Own", b"v"))),
        ("upper_case_pseudo", dict(fields=GET[1:], more=literal(":Method", "GET"))),
        ("upper_case_trailer", dict(fields=POST, data=b"four", trailers=literal("X-Sum"))),
        ("fields_none", dict(fields=[])),
        ("name_empty", dict(more=literal(""))),
        ("name_with_blank", dict(more=literal("a b"))),
        ("name_with_colon", dict(more=literal("a:b"))),
        ("name_not_ascii", dict(more=literal("a\xe9".encode("latin-1")))),
        ("name_with_zero", dict(more=literal("a\0"))),
        # Values.
        ("value_with_zero", dict(more=literal("a", "b\0c"))),
        ("value_with_line_feed", dict(more=literal("a", "b\nc"))),
        ("value_with_carriage_return", dict(more=literal("a", "b\rc"))),
        ("value_after_blank", dict(more=literal("a", " b"))),
        ("value_before_tab", dict(more=literal("a", "b\t"))),
        # Pseudo-fields.
        ("pseudo_behind_field", dict(fields=GET[:3] + [("a", "b")] + GET[3:])),
        ("pseudo_unknown", dict(fields=GET + [(":own", "x")])),
        ("pseudo_of_response", dict(fields=GET + [(":status", "200")])),
        ("two_methods", dict(fields=GET + [(":method", "GET")])),
        ("two_schemes", dict(fields=GET + [(":scheme", "http")])),
        ("two_paths", dict(fields=GET + [(":path", "/hello")])),
        ("two_authorities", dict(fields=GET + [(":authority", "localhost")])),
        ("no_method", dict(fields=without(":method"))),
        ("no_scheme", dict(fields=without(":scheme"))),
        ("no_path", dict(fields=without(":path"))),
        ("no_authority", dict(fields=without(":authority"))),
        ("method_empty", dict(fields=changed(":method", ""))),
        ("method_with_blank", dict(fields=changed(":method", "G T"))),
        ("scheme_empty", dict(fields=changed(":scheme", ""))),
        ("scheme_with_colon", dict(fields=changed(":scheme", "http:"))),
        ("path_empty", dict(fields=changed(":path", ""))),
        ("path_relative", dict(fields=changed(":path", "hello"))),
        ("path_absolute_form", dict(fields=changed(":path", "http://localhost/hello"))),
        ("path_star", dict(fields=changed(":path", "*"))),
        ("path_with_fragment", dict(fields=changed(":path", "/hello#a"))),
        ("path_with_blank", dict(fields=changed(":path", "/hello HTTP/1.1"))),
        ("authority_empty", dict(fields=changed(":authority", ""))),
        ("authority_with_user", dict(fields=changed(":authority", "a@localhost"))),
        ("authority_with_comma", dict(fields=changed(":authority", "a,b"))),
        ("authority_bad_port", dict(fields=changed(":authority", "a:http"))),
        ("host_another", dict(fields=GET + [("host", "other")])),
        ("two_hosts", dict(fields=without(":authority") + [("host", "localhost"), ("host", "localhost")])),
        ("connect", dict(fields=[(":method", "CONNECT"), (":authority", "localhost:80")])),
        # Fields of connections.
        ("connection", dict(fields=GET + [("connection", "close")])),
        ("keep_alive", dict(fields=GET + [("keep-alive", "timeout=5")])),
        ("proxy_connection", dict(fields=GET + [("proxy-connection", "keep-alive")])),
        ("transfer_encoding", dict(fields=POST + [("transfer-encoding", "chunked")], data=b"0\r\n\r\n")),
        ("upgrade", dict(fields=GET + [("upgrade", "websocket")])),
        ("te_gzip", dict(fields=GET + [("te", "gzip")])),
        ("te_trailers_and_more", dict(fields=GET + [("te", "trailers, gzip")])),
        # Lengths.
        ("length_too_large", dict(fields=length("5"), data=b"four")),
        ("length_too_small", dict(fields=length("3"), data=b"four")),
        ("length_zero_with_data", dict(fields=length("0"), data=b"four")),
        ("length_without_data", dict(fields=length("4"))),
        ("length_twice", dict(fields=length("4", "5"), data=b"four")),
        ("length_with_sign", dict(fields=length("+4"), data=b"four")),
        ("length_list", dict(fields=length("4, 4"), data=b"four")),
        ("length_empty", dict(fields=length(""), data=b"four")),
        ("length_too_large_with_trailers", dict(fields=length("5"), data=b"four", trailers=literal("a"))),
        # Trailers.
        ("trailers", dict(fields=POST, data=b"four", trailers=literal("a"))),
        ("trailers_with_pseudo", dict(fields=POST, data=b"four", trailers=literal(":path", "/"))),
        ("trailers_with_connection", dict(fields=POST, data=b"four", trailers=literal("connection", "close"))),
        ("trailers_that_end_nothing", dict(fields=POST, data=b"four", trailers=literal("a"), final=False)),
    ]
    for name, case in cases:
        print(name, outcome(port, **case))


def scenario_errors(port):
    """Errors of the connection."""

    def one(*frames, wait=40):
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
        # A name of five bytes of which one is present; an integer that is incomplete.
        one(frame(HEADERS, 5, 1, b"\x00\x05a")),
        one(frame(HEADERS, 5, 1, b"\x82\xff")),
        one(frame(HEADERS, 5, 1, b"\x82\xc6")),
        one(frame(PING, 0, 0, b"short")),
        one(frame(PING, 0, 1, bytes(8))),
        one(frame(SETTINGS, 0, 0, struct.pack("!HI", 4, 2**31))),
        one(frame(SETTINGS, 0, 0, struct.pack("!HI", 5, 1))),
        # The values are processed in order, so that the first one is an error too.
        one(frame(SETTINGS, 0, 0, struct.pack("!HIHI", 4, 2**31, 4, 1000))),
        one(frame(SETTINGS, 0, 0, struct.pack("!HIHI", 5, 1, 5, 16384))),
        one(frame(WINDOW, 0, 0, bytes(4))),
        one(frame(WINDOW, 0, 0, struct.pack("!I", 2**31 - 1))),
        one(frame(RST, 0, 1, bytes(4))),
        one(frame(PUSH, 4, 1, bytes(8))),
        one(frame(CONTINUATION, 4, 1, b"")),
        one(frame(DATA, 0, 1, b"")[:3] + b"\0" + b"\0\0\0\0\1"),
        one(struct.pack("!I", 16385)[1:] + bytes([DATA, 0]) + struct.pack("!I", 1)),
        one(frame(GOAWAY, 0, 0, bytes(7))),
    )


def scenario_too_much_body(port):
    """A body larger than the stream's window, with what an update may have added."""
    c = Client(port)
    s = c.request("/sleep", method="POST", end=False)
    for _ in range(9):
        c.send(frame(DATA, 0, s, bytes(16384)))
    c.until(lambda: s in c.resets)
    print(c.resets.get(s))


def scenario_one_byte_segments(port):
    """A correct conversation, in segments of one byte."""
    c = Client(port, preface=False)
    up = c.head("/sum", method="POST", extra=[("content-length", "10")])
    data = PREFACE + frame(SETTINGS) + frame(HEADERS, 0, 1, up[:5]) + frame(CONTINUATION, 4, 1, up[5:]) + frame(DATA, 0, 1, b"four") + frame(DATA, 1, 1, b"sixsix")
    for i in range(len(data)):
        c.send(data[i : i + 1])
        c.read(0.001)
    c.until(lambda: 1 in c.ended)
    print(c.statuses.get(1), c.bodies.get(1, b"").decode())


def scenario_vanish(port):
    """Clients that disconnect in the middle of downloads, uploads and waits."""
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
    print(running(Client(port)))


def scenario_bodies_bounded(port):
    """Bodies on many streams that no application reads. They exceed the connection's window, which is an error."""
    c = Client(port)
    for _ in range(40):
        s = c.request("/sleep", method="POST", end=False)
        for _ in range(3):
            c.send(frame(DATA, 0, s, bytes(16384)))
        c.read(0)
    end_of(c)


def upload(client, stream, frames, stop=lambda: False):
    """Send DATA frames as far as the stream's window allows; padding counts. Return how many were sent before the
    server stopped updating the window, or the condition held."""
    sent = given = seen = 0
    for number, data in enumerate(frames):
        size = len(data) - 9

        def fits():
            nonlocal given, seen
            for kind, _, of, payload in client.frames[seen:]:
                if kind == WINDOW and of == stream:
                    given += struct.unpack("!I", payload)[0]
            seen = len(client.frames)
            return 65535 + given - sent >= size

        if not fits() and not client.until(lambda: fits() or stop()) or stop():
            return number
        client.send(data)
        sent += size
        if number % 50 == 0:
            client.read(0)
    return len(frames)


def scenario_padded_uploads(port):
    """Data with more padding than data, frames of nothing but padding, and both on one stream."""
    c = Client(port)
    padded = lambda n, end=0: frame(DATA, 8 | end, 0, bytes([255]) + b"x" * n + bytes(255))
    on = lambda s, f: f[:5] + struct.pack("!I", s) + f[9:]
    for frames in ([padded(1)] * 2000, [padded(100)] * 3000, [padded(10), padded(0)] * 60 + [padded(3000)] * 200):
        s = c.request("/sum", method="POST", end=False)
        sent = upload(c, s, [on(s, f) for f in frames])
        if sent == len(frames):
            c.send(frame(DATA, 1, s))
            c.until(lambda: s in c.ended)
        print(sent == len(frames), c.bodies.get(s, b"").decode())


def scenario_only_padding(port):
    """Nothing but padding, to an application that reads nothing. The server must return the credit all the same."""
    c = Client(port)
    s = c.request("/sleep", method="POST", end=False)
    for _ in range(190):
        c.send(frame(DATA, 8, s, bytes([255]) + bytes(255)))
    given = lambda: sum(struct.unpack("!I", p)[0] for kind, _, of, p in c.frames if kind == WINDOW and of == s)
    c.until(lambda: given() >= 32768)
    print(given() >= 32768)


def scenario_byte_a_frame(port):
    """Frames of one byte that no application reads, as many as the connection's window allows."""
    c = Client(port)
    for _ in range(15):
        s = c.request("/sleep", method="POST", end=False)
        for _ in range(60):
            c.send(frame(DATA, 0, s, b"x") * 1000)
        c.read(0)
    s = c.request("/hello")
    c.until(lambda: s in c.ended, 100)
    print(c.statuses.get(s), c.goaway)


if __name__ == "__main__":
    globals()["scenario_" + sys.argv[2]](int(sys.argv[1]))
