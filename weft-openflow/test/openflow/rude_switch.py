#!/usr/bin/env python3
"""Switches that follow the OpenFlow specification (1.0.0 and 1.3.5), and switches that do not.

usage: rude_switch.py HOST PORT [CASE]

Written from the specification, without code of the controller. Each case runs for both versions. After each case a new,
correct switch must be served. Prints one line for each case; the exit status is 1 if a case failed.
"""

import os
import random
import select
import socket
import struct
import sys
import time

HELLO, ERROR, ECHO_REQUEST, ECHO_REPLY, FEATURES_REQUEST, FEATURES_REPLY = 0, 1, 2, 3, 5, 6
GET_CONFIG_REQUEST, GET_CONFIG_REPLY, PACKET_IN, FLOW_REMOVED, PORT_STATUS, PACKET_OUT, FLOW_MOD = 7, 8, 10, 11, 12, 13, 14
NAMES = {1: "1.0", 4: "1.3"}
# Types whose numbers differ between the versions.
STATS_REQUEST, STATS_REPLY, BARRIER_REQUEST, BARRIER_REPLY = (
    {1: 16, 4: 18},
    {1: 17, 4: 19},
    {1: 18, 4: 20},
    {1: 19, 4: 21},
)
ROLE_REQUEST, ROLE_REPLY, PORT_DESC = 24, 25, 13
PATIENCE = 60


class Failure(Exception):
    pass


def message(version, kind, body=b"", xid=0, length=None):
    return struct.pack("!BBHI", version, kind, 8 + len(body) if length is None else length, xid) + body


def port(version, number):
    address, name = struct.pack("!Q", number & 0xFFFFFFFF)[2:], b"port%d" % number
    if version == 1:
        return struct.pack("!H6s16s6I", number, address, name[:15], 0, 0, 0, 0, 0, 0)
    return struct.pack("!I4x6s2x16s8I", number, address, name[:15], 0, 0, 0, 0, 0, 0, 0, 0)


def features(version, datapath, ports):
    if version == 1:
        return struct.pack("!QIB3xII", datapath, 256, 2, 0, 0xFFF) + b"".join(port(1, n) for n in ports)
    return struct.pack("!QIBB2xII", datapath, 256, 2, 0, 0x4F, 0)


def packet_in(version, in_port, frame, buffer_id=0xFFFFFFFF, total=None):
    total = len(frame) if total is None else total
    if version == 1:
        return struct.pack("!IHHBx", buffer_id, total & 0xFFFF, in_port, 0) + frame
    # A match of one field, OXM_OF_IN_PORT, padded to 16 bytes.
    match = struct.pack("!HHIIxxxx", 1, 12, 0x80000004, in_port)
    return struct.pack("!IHBBQ", buffer_id, total & 0xFFFF, 0, 0, 0) + match + b"\0\0" + frame


def frame(destination, source, kind=0x0800, payload=bytes(46)):
    return struct.pack("!Q", destination)[2:] + struct.pack("!Q", source)[2:] + struct.pack("!H", kind) + payload


class Switch:
    """A correct switch."""

    def __init__(self, address, version, datapath, ports=(1, 2, 3, 4)):
        self.version, self.datapath, self.ports, self.bytes = version, datapath, ports, b""
        self.socket = socket.create_connection(address, PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, kind, body=b"", xid=0, length=None):
        self.raw(message(self.version, kind, body, xid, length))

    def raw(self, data):
        self.socket.sendall(data)

    def receive(self, patience=PATIENCE):
        """The next message: type, xid, body. None at the end of the connection."""
        end = time.monotonic() + patience
        while True:
            if len(self.bytes) >= 8:
                version, kind, length, xid = struct.unpack("!BBHI", self.bytes[:8])
                if length < 8:
                    raise Failure("the controller sent a length of %d" % length)
                if len(self.bytes) >= length:
                    body, self.bytes = self.bytes[8:length], self.bytes[length:]
                    return kind, xid, body
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.socket], [], [], left)[0]:
                raise Failure("nothing came from the controller")
            try:
                more = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not more:
                return None
            self.bytes += more

    def answer(self, kind, xid, body):
        """What a correct switch answers by itself."""
        v = self.version
        if kind == ECHO_REQUEST:
            self.send(ECHO_REPLY, body, xid)
        elif kind == FEATURES_REQUEST:
            self.send(FEATURES_REPLY, features(v, self.datapath, self.ports), xid)
        elif kind == GET_CONFIG_REQUEST:
            self.send(GET_CONFIG_REPLY, struct.pack("!HH", 0, 128), xid)
        elif kind == BARRIER_REQUEST[v]:
            self.send(BARRIER_REPLY[v], b"", xid)
        elif v == 4 and kind == ROLE_REQUEST:
            self.send(ROLE_REPLY, body, xid)
        elif v == 4 and kind == STATS_REQUEST[4] and struct.unpack("!H", body[:2])[0] == PORT_DESC:
            ports = b"".join(port(4, n) for n in self.ports)
            self.send(STATS_REPLY[4], struct.pack("!HHxxxx", PORT_DESC, 0) + ports, xid)

    def expect(self, wanted, what):
        while True:
            found = self.receive()
            if found is None:
                raise Failure("the connection ended before " + what)
            if wanted(*found):
                return found
            self.answer(*found)

    def handshake(self):
        self.send(HELLO)
        kind, xid, body = self.expect(lambda k, _x, _b: k == FEATURES_REQUEST, "FEATURES_REQUEST")
        self.answer(kind, xid, body)
        return self

    def served(self):
        """A packet has an answer with its buffer."""
        buffer_id = random.randrange(1, 0x7FFFFFFF)
        self.send(PACKET_IN, packet_in(self.version, 1, frame(0x020000000001, 0x020000000002), buffer_id), buffer_id)
        self.expect(lambda k, x, _b: k in (PACKET_OUT, FLOW_MOD) and x == buffer_id, "the answer to a packet")

    def ended(self):
        while self.receive() is not None:
            pass


def quietly(act):
    """Run what the controller may cut off."""
    try:
        act()
    except (ConnectionResetError, BrokenPipeError, socket.timeout):
        pass


# Cases --------------------------------------------------------------------------------------------------------------


def correct(new, version):
    with new() as s:
        s.handshake()
        for _ in range(20):
            s.served()


def in_pieces(new, version):
    """Each message in two halves, cut at each place."""
    with new() as s:
        s.handshake()
        whole = message(version, ECHO_REQUEST, b"half", 99)
        for cut in range(1, len(whole)):
            s.raw(whole[:cut])
            time.sleep(0.002)
            s.raw(whole[cut:])
            s.expect(lambda k, x, b: k == ECHO_REPLY and x == 99 and b == b"half", "an echo")


def half_and_gone(new, version):
    """The connection ends within a message."""
    whole = message(version, HELLO) + message(version, FEATURES_REPLY, features(version, 77, [1]), 1)
    for cut in range(len(whole)):
        with new() as s:
            quietly(lambda: s.raw(whole[:cut]))


def wrong_lengths(new, version):
    for length in range(8):
        with new() as s:
            s.handshake()
            s.send(ECHO_REQUEST, b"", 1, length)
            s.ended()
    # The length of the message is too short for its type: the connection goes on.
    for kind in list(range(1, 30)):
        for size in (0, 1, 3, 7, 8, 15):
            with new() as s:
                s.handshake()
                s.send(kind, b"\xff" * size, 7)
                s.served()


def huge_lengths(new, version):
    with new() as s:
        s.handshake()
        body = packet_in(version, 1, frame(0x020000000001, 0x020000000002, payload=bytes(65000)), 5)
        s.send(PACKET_IN, body, 5)
        s.expect(lambda k, x, _b: k in (PACKET_OUT, FLOW_MOD) and x == 5, "the answer to 65,000 bytes")
        s.send(ECHO_REQUEST, bytes(65527), 6)
        s.expect(lambda k, x, b: k == ECHO_REPLY and x == 6 and len(b) == 65527, "an echo of 65,527 bytes")
        # An ERROR for the largest message of an unknown type has a part of it only.
        s.send(99, bytes(65527), 8)
        s.expect(lambda k, x, b: k == ERROR and x == 8 and 64 <= len(b) < 1000, "an ERROR")
    # Most of the message never comes.
    stalled = [new().handshake() for _ in range(20)]
    for s in stalled:
        s.send(ECHO_REQUEST, b"x", 1, 65535)
    correct(new, version)
    for s in stalled:
        s.socket.close()


def unasked(new, version):
    """Replies without requests."""
    with new() as s:
        s.handshake()
        for xid in (0, 1, 5, 0xFFFFFFFF):
            s.send(ECHO_REPLY, b"unasked", xid)
            s.send(BARRIER_REPLY[version], b"", xid)
            s.send(GET_CONFIG_REPLY, struct.pack("!HH", 0, 0), xid)
            s.send(FEATURES_REPLY, features(version, s.datapath + 1000, [1]), xid)
            s.send(HELLO, b"", xid)
            for kind in range(0, 20):
                s.send(STATS_REPLY[version], struct.pack("!HH", kind, 1) + (b"\0\0\0\0" if version == 4 else b""), xid)
            if version == 4:
                for role in range(0, 5):
                    s.send(ROLE_REPLY, struct.pack("!IxxxxQ", role, 0xFFFFFFFFFFFFFFFF), xid)
        s.served()


def requests_of_controllers(new, version):
    """A switch sends what only a controller sends."""
    with new() as s:
        s.handshake()
        s.send(FEATURES_REQUEST, b"", 3)
        s.send(GET_CONFIG_REQUEST, b"", 4)
        s.send(BARRIER_REQUEST[version], b"", 5)
        s.send(STATS_REQUEST[version], struct.pack("!HH", 0, 0) + (b"\0\0\0\0" if version == 4 else b""), 6)
        if version == 4:
            s.send(ROLE_REQUEST, struct.pack("!IxxxxQ", 2, 1), 7)
        s.served()


def never_reads(new, version):
    """Packets until the controller reads no more: what it keeps is bounded."""
    with new() as s:
        s.handshake()
        burst = message(version, PACKET_IN, packet_in(version, 1, frame(0x020000000001, 0x020000000002), 9), 9) * 500
        s.socket.setblocking(False)
        sent, stuck = 0, 0
        while stuck < 20 and sent < 200_000_000:
            try:
                # What was not taken of a burst comes first.
                sent += s.socket.send(burst[sent % len(burst) :])
                stuck = 0
            except BlockingIOError:
                stuck += 1
                time.sleep(0.05)
        if sent >= 200_000_000:
            raise Failure("the controller received 200 MB from a switch that reads nothing")
        correct(new, version)


def echo_flood(new, version):
    with new() as s:
        s.handshake()
        count = 20000
        for _ in range(count // 500):
            s.raw(message(version, ECHO_REQUEST, b"flood", 11) * 500)
            for _ in range(500):
                s.expect(lambda k, x, _b: k == ECHO_REPLY and x == 11, "an echo")
        s.served()


def random_packets(new, version):
    with new() as s:
        s.handshake()
        kinds = [0x0800, 0x0806, 0x86DD, 0x88CC, 0x8100, 0x88A8, 0x0000, 0xFFFF]
        for _ in range(3000):
            data = frame(random.getrandbits(48), random.getrandbits(48), random.choice(kinds), os.urandom(random.randrange(80)))
            in_port = random.choice([0, 1, 2, 4, 5, 0xFF00, 0xFFF8, 0xFFFE, 0xFFFF])
            s.send(PACKET_IN, packet_in(version, in_port, data[: random.randrange(len(data) + 1)], random.getrandbits(32), random.getrandbits(16)), 0)
        s.served()


def random_messages(new, version):
    for _ in range(100):
        with new() as s:
            s.handshake()

            def talk():
                for _ in range(20):
                    s.send(random.randrange(40), os.urandom(random.randrange(200)), random.getrandbits(32))

            quietly(talk)
    with new() as s:
        quietly(lambda: s.raw(os.urandom(100000)))


def many_ports(new, version):
    """Ports come up without end. Each one is state in the controller, and an LLDP frame now and then."""
    with new() as s:
        s.handshake()
        for first in range(1, 60000, 100):
            s.raw(b"".join(message(version, PORT_STATUS, struct.pack("!B7x", 0) + port(version, n)) for n in range(first, first + 100)))
            # The switch reads what comes, up to the answer to this.
            s.send(ECHO_REQUEST, b"ports", first)
            s.expect(lambda k, x, _b: k == ECHO_REPLY and x == first, "an echo")
        s.served()


CASES = [
    correct,
    in_pieces,
    half_and_gone,
    wrong_lengths,
    huge_lengths,
    unasked,
    requests_of_controllers,
    never_reads,
    echo_flood,
    random_packets,
    random_messages,
    many_ports,
]


def main():
    address = (sys.argv[1], int(sys.argv[2]))
    chosen = [c for c in CASES if len(sys.argv) < 4 or c.__name__ == sys.argv[3]]
    numbers = iter(range(100, 10**9))
    failed = 0
    random.seed(os.environ.get("RUDE_SEED"))
    for version in (1, 4):
        for case in chosen:
            start = time.monotonic()
            try:
                case(lambda: Switch(address, version, next(numbers)), version)
                # A switch that behaves is served as before.
                with Switch(address, version, next(numbers)) as s:
                    s.handshake().served()
                print("ok %s %s (%.1f s)" % (NAMES[version], case.__name__, time.monotonic() - start), flush=True)
            except (Failure, OSError) as e:
                failed = 1
                print("FAILED %s %s: %s: %s" % (NAMES[version], case.__name__, type(e).__name__, e), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
