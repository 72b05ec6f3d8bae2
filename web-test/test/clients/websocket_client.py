"""WebSockets over HTTP/2 (RFC 8441), by Debian's python3-h2: talks to the echo of Library.WebSockets, and prints a line
for each case. The frames of RFC 6455 are made here. Argument: the port."""

import os
import struct
import sys

# The connection and its tunnels are those of the client of weft-http's suite.
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../weft-http/test/http"))

from tunnel_client import Client  # noqa: E402

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class WebSockets(Client):
    def __init__(self, port):
        super().__init__(port)
        self.until(lambda: self.settings)

    def connect(self, path):
        stream = super().connect(path, [("sec-websocket-version", "13"), ("origin", "http://localhost")])
        self.until(lambda: stream in self.heads or stream in self.resets)
        return stream

    def message(self, stream):
        """The next frame of the tunnel: its kind and payload."""

        def whole():
            data = self.data.get(stream, b"")
            if len(data) < 2:
                return None
            size, start = data[1] & 127, 2
            if size == 126:
                size, start = (struct.unpack("!H", data[2:4])[0], 4) if len(data) >= 4 else (len(data), 4)
            elif size == 127:
                size, start = (struct.unpack("!Q", data[2:10])[0], 10) if len(data) >= 10 else (len(data), 10)
            return (data[0] & 15, start, start + size) if len(data) >= start + size else None

        self.until(whole)
        kind, start, end = whole()
        data = self.data[stream]
        self.data[stream] = data[end:]
        return kind, data[start:end]


def frame(kind, payload):
    """A masked frame, as clients send them."""
    size = len(payload)
    head = bytes([0x80 | kind])
    head += bytes([0x80 | size]) if size < 126 else bytes([0xFE]) + struct.pack("!H", size) if size < 65536 else bytes([0xFF]) + struct.pack("!Q", size)
    mask = os.urandom(4)
    return head + mask + (int.from_bytes(payload, "big") ^ int.from_bytes((mask * (size // 4 + 1))[:size], "big")).to_bytes(size, "big")


def main(port):
    c = WebSockets(port)
    print("setting", c.settings.get(8))
    s = c.connect("/")
    print("head", c.heads[s][":status"], sorted(c.heads[s].keys() & {"upgrade", "connection", "sec-websocket-accept", "content-length"}))
    for size in (0, 1, 125, 126, 65535, 65536, 3000000):
        message = (bytes(range(256)) * (size // 256 + 1))[:size]
        c.send(s, frame(BINARY, message))
        print(size, c.message(s) == (BINARY, message))
    c.send(s, frame(TEXT, b"text") + frame(PING, b"ping"))
    print(c.message(s), c.message(s))
    # The client closes.
    c.send(s, frame(CLOSE, struct.pack("!H", 1000)))
    print("closed", c.message(s) == (CLOSE, struct.pack("!H", 1000)))
    c.until(lambda: s in c.ended)
    c.end(s)
    # The server closes.
    s = c.connect("/close")
    print(c.message(s))
    c.send(s, frame(CLOSE, struct.pack("!H", 4000)))
    c.until(lambda: s in c.ended)
    # The application refuses, and another path is no WebSocket.
    s = c.connect("/refuse")
    c.until(lambda: s in c.ended or s in c.resets)
    print("refused", c.heads[s][":status"])
    # Twenty at once, and then the end of each.
    many = [c.connect("/") for _ in range(20)]
    for s in many:
        c.send(s, frame(TEXT, b"%d" % s))
    print("many", all(c.message(s) == (TEXT, b"%d" % s) for s in many))
    for s in many[:10]:
        c.h2.end_stream(s)
    for s in many[10:]:
        c.h2.reset_stream(s, 8)
    c.flush()
    c.until(lambda: all(s in c.ended for s in many[:10]))
    # The connection goes on.
    s = c.connect("/")
    c.send(s, frame(TEXT, b"still"))
    print(c.message(s))


if __name__ == "__main__":
    main(int(sys.argv[1]))
