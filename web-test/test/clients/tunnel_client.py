"""WebSockets over HTTP/2 (RFC 8441), by Debian's python3-h2: talks to the echo of Library.WebSockets, and prints a line
for each case. The frames of RFC 6455 are made here. Argument: the port."""

import os
import socket
import struct
import sys

import h2.config
import h2.connection
import h2.events

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class Client:
    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.settimeout(60)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.flush()
        self.heads, self.data, self.ended, self.resets = {}, {}, set(), {}
        # Whether what comes is credited at once.
        self.crediting = True
        self.owed = {}
        self.settings = None
        while self.settings is None:
            self.read()

    def flush(self):
        self.sock.sendall(self.h2.data_to_send())

    def read(self):
        received = self.sock.recv(65536)
        if not received:
            raise EOFError
        for event in self.h2.receive_data(received):
            if isinstance(event, h2.events.RemoteSettingsChanged):
                self.settings = {key: change.new_value for key, change in event.changed_settings.items()}
            elif isinstance(event, h2.events.ResponseReceived):
                self.heads[event.stream_id] = dict(event.headers)
            elif isinstance(event, h2.events.DataReceived):
                self.data[event.stream_id] = self.data.get(event.stream_id, b"") + event.data
                self.owed[event.stream_id] = self.owed.get(event.stream_id, 0) + event.flow_controlled_length
                if self.crediting:
                    self.credit(event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                self.resets[event.stream_id] = event.error_code
        self.flush()

    def credit(self, stream):
        if self.owed.get(stream) and stream not in self.ended:
            self.h2.acknowledge_received_data(self.owed.pop(stream), stream)

    def until(self, condition):
        while not condition():
            self.read()

    def connect(self, path):
        stream = self.h2.get_next_available_stream_id()
        pseudo = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
        self.h2.send_headers(stream, pseudo + [("sec-websocket-version", "13"), ("origin", "http://localhost")])
        self.flush()
        self.until(lambda: stream in self.heads or stream in self.resets)
        return stream

    def send(self, stream, data):
        """As fast as the windows allow; what comes meanwhile is kept."""
        while data:
            room = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            if room > 0:
                self.h2.send_data(stream, data[:room])
                data = data[room:]
                self.flush()
            else:
                self.read()

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
    c = Client(port)
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
    c.h2.end_stream(s)
    c.flush()
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
