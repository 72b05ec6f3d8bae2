"""A client of extended CONNECT (RFC 8441), by Debian's python3-h2: tunnels to the echo of Spec.Tunnels, and prints a line
for each case. Argument: the port."""

import socket
import sys

import h2.config
import h2.connection
import h2.events


class Client:
    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.settimeout(60)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.flush()
        self.heads, self.data, self.ended, self.resets, self.settings = {}, {}, set(), {}, {}

    def flush(self):
        self.sock.sendall(self.h2.data_to_send())

    def read(self):
        received = self.sock.recv(65536)
        if not received:
            raise EOFError
        for event in self.h2.receive_data(received):
            if isinstance(event, h2.events.RemoteSettingsChanged):
                self.settings.update((key, change.new_value) for key, change in event.changed_settings.items())
            elif isinstance(event, h2.events.ResponseReceived):
                self.heads[event.stream_id] = dict(event.headers)
            elif isinstance(event, h2.events.DataReceived):
                self.data[event.stream_id] = self.data.get(event.stream_id, b"") + event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                self.resets[event.stream_id] = event.error_code
        self.flush()

    def until(self, condition):
        while not condition():
            self.read()

    def connect(self, path, fields=()):
        stream = self.h2.get_next_available_stream_id()
        pseudo = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
        self.h2.send_headers(stream, pseudo + list(fields))
        self.flush()
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

    def end(self, stream):
        self.h2.end_stream(stream)
        self.flush()


def main(port):
    c = Client(port)
    # The client ends, and gets back all that it has sent.
    message = bytes(range(256)) * 4000
    s = c.connect("/echo")
    c.send(s, message)
    c.end(s)
    c.until(lambda: s in c.ended)
    print("echo", c.heads[s][":status"], c.data[s] == message)
    # The server ends.
    s = c.connect("/hello")
    c.until(lambda: s in c.ended)
    print("hello", c.heads[s][":status"], c.data[s])
    c.end(s)
    # Fifty at once. Some end, the others are reset in the middle.
    many = [c.connect("/echo") for _ in range(50)]
    for s in many:
        c.send(s, b"%d" % s)
    c.until(lambda: all(c.data.get(s) == b"%d" % s for s in many))
    for s in many[:25]:
        c.end(s)
    for s in many[25:]:
        c.h2.reset_stream(s, 8)
    c.flush()
    c.until(lambda: all(s in c.ended for s in many[:25]))
    print("many", len(c.resets))
    # One that floods, and is reset.
    s = c.connect("/flood")
    c.until(lambda: len(c.data.get(s, b"")) > 300000)
    c.h2.reset_stream(s, 8)
    c.flush()
    # The connection goes on, and is closed with a tunnel open.
    s = c.connect("/echo")
    c.send(s, b"still")
    c.until(lambda: c.data.get(s) == b"still")
    print("still")


if __name__ == "__main__":
    main(int(sys.argv[1]))
