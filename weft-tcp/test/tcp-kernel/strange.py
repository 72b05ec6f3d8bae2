"""Peers that do not behave like a kernel: segments made by scapy, sent from an address that the kernel does not own, so
that the kernel does not answer the stack's segments; and unusual programs on the kernel's sockets.

strange.py NAME   runs a case (a key of CASES) against 10.99.0.2, which serves echo (7), a count (9) and a source (19)
strange.py        exits with 0 if scapy is installed
"""
import logging, random, socket, struct, sys, threading, time

logging.getLogger("scapy").setLevel(logging.ERROR)
from scapy.all import ICMP, IP, TCP

HOST, PEER = "10.99.0.2", "10.99.0.77"


class Link:
    """Sends packets to the stack and receives packets from it, by raw sockets on the device."""

    def __init__(self):
        self.out = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        self.tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
        self.tap.bind(("weft0", 0))

    def put(self, packet):
        self.out.sendto(bytes(packet), (HOST, 0))

    def hear(self, port, seconds, most):
        """Return the stack's segments to a port of the peer: at most the given number, within the given time. Where the
        number is what has to come, the time may be long."""
        found, end = [], time.time() + seconds
        while len(found) < most and time.time() < end:
            self.tap.settimeout(max(0.01, end - time.time()))
            try:
                p = IP(self.tap.recv(65535))
            except socket.timeout:
                break
            if p.src == HOST and p.dst == PEER and TCP in p and p[TCP].dport == port:
                found.append(p[TCP])
        return found


class Peer:
    """A connection that the peer has opened."""

    def __init__(self, link, port, mss=1460, sack=False):
        self.link, self.to, self.port = link, port, random.randint(20000, 60000)
        self.seq, self.ack = random.getrandbits(32), 0
        link.put(self.segment("S", options=[("MSS", mss)] + ([("SAckOK", b"")] if sack else [])))
        answers = link.hear(self.port, 30, 1)
        assert answers and answers[0].flags == "SA", answers
        self.seq, self.ack = self.seq + 1, answers[0].seq + 1
        self.say("A")

    def segment(self, flags, data=b"", at=0, ack=0, window=65535, options=()):
        """A segment at a distance from the next sequence number, with an acknowledgment at a distance from the current one."""
        acked = (self.ack + ack) % 2**32 if "A" in flags else 0
        return IP(src=PEER, dst=HOST) / TCP(sport=self.port, dport=self.to, flags=flags, seq=(self.seq + at) % 2**32, ack=acked, window=window, options=list(options)) / data

    def say(self, *args, **named):
        self.link.put(self.segment(*args, **named))

    def hear(self, seconds=1.0, most=4):
        return self.link.hear(self.port, seconds, most)


def data_of(segments):
    return b"".join(bytes(s.payload) for s in segments)


def echoes():
    s = socket.create_connection((HOST, 7), timeout=60)
    s.sendall(b"hello")
    assert s.recv(100) == b"hello"
    s.close()


def resets():
    for _ in range(2000):
        s = socket.create_connection((HOST, 7), timeout=60)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
    echoes()


def single_bytes():
    s = socket.create_connection((HOST, 7), timeout=100)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sent, got = bytes(random.getrandbits(8) for _ in range(20000)), bytearray()

    def read():
        while len(got) < len(sent):
            b = s.recv(65536)
            if not b:
                break
            got.extend(b)

    reader = threading.Thread(target=read)
    reader.start()
    for b in sent:
        s.send(bytes([b]))
    reader.join(100)
    assert bytes(got) == sent


def tiny_mss():
    p = Peer(Link(), 19, mss=1)
    p.say("PA", b"3000\n")
    sizes = [len(s.payload) for s in p.hear(1, 40)]
    assert 0 < max(sizes) <= 88, sizes


def fin_first():
    p = Peer(Link(), 9)
    p.say("FPA", b"world", at=5)
    p.hear(0.5, 2)
    p.say("PA", b"hello")
    answers = p.hear()
    assert b"10" in data_of(answers), answers
    assert (p.seq + 11) % 2**32 in [s.ack for s in answers], answers


def blind():
    p = Peer(Link(), 7)
    for guess in (p.segment("R", at=100), p.segment("S", at=200), p.segment("PA", b"x", at=5000000)):
        p.link.put(guess)
        assert [str(s.flags) for s in p.hear(30, 1)] == ["A"]
    p.say("PA", b"ab")
    assert b"ab" in data_of(p.hear())


def fragments():
    p = Peer(Link(), 7)
    body = bytes(p.segment("PA", b"A" * 64))[20:]

    def fragment(at, end, number):
        more = "MF" if end < len(body) else 0
        p.link.put(IP(src=PEER, dst=HOST, proto=6, id=number, flags=more, frag=at // 8) / body[at:end])

    for at, end in ((0, 48), (40, 64), (64, len(body))):
        fragment(at, end, 7)
    assert p.hear(0.5) == []
    for at, end in ((64, len(body)), (0, 40), (64, len(body)), (0, 40), (40, 64)):
        fragment(at, end, 8)
    assert b"A" * 64 in data_of(p.hear())


def datagrams():
    over = []

    def flood():
        u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for _ in range(200000):
            if over:
                return
            try:
                u.sendto(b"x" * random.randint(0, 1400), (HOST, random.randint(1, 65535)))
            except OSError:
                pass

    flooding = threading.Thread(target=flood)
    flooding.start()
    for _ in range(20):
        echoes()
    over.append(True)
    flooding.join()


def zero_window():
    p = Peer(Link(), 19)
    p.say("PA", b"5000\n", window=0)
    p.seq += 5
    probes = [len(s.payload) for s in p.hear(3.5, 20)]
    assert len(probes) >= 3 and max(probes) <= 1, probes
    p.say("A")
    assert len(data_of(p.hear(3, 5))) > 1000


def acknowledgments():
    p = Peer(Link(), 7)
    for _ in range(2000):
        p.say("A", ack=1000000)
    assert 1 <= len(p.hear(1.5, 3000)) <= 20


def small_path():
    p = Peer(Link(), 19)
    p.say("PA", b"20000\n")
    p.seq += 6
    quoted = p.hear(30, 1)[0]
    header = bytes(IP(src=HOST, dst=PEER) / TCP(sport=19, dport=p.port, seq=quoted.seq, flags="A"))[:28]
    p.link.put(IP(src="10.99.0.1", dst=HOST) / ICMP(type=3, code=4, nexthopmtu=68) / header)
    p.hear(0.5, 100)
    sizes = [len(s.payload) for s in p.hear(3, 5)]
    assert sizes and max(sizes) >= 500, sizes


def reset_states():
    """A reset at the next expected sequence number ends the connection, in every state that a server can have."""
    link = Link()

    def gone(p, at=0, ack=0):
        # The reset itself gets no answer. A segment of a connection that does not exist gets a reset.
        p.hear(0.1, 100)
        p.say("R", at=at)
        assert p.hear(0.2) == [], p.to
        p.say("A", at=at, ack=ack)
        answers = [str(s.flags) for s in p.hear()]
        assert answers and set(answers) == {"R"}, answers

    # SYN-RECEIVED: the handshake's last segment is not sent.
    class Half(Peer):
        def say(self, *args, **named):
            pass

    half = Half(link, 7)
    link.put(half.segment("R"))
    assert link.hear(half.port, 0.2, 4) == []
    link.put(half.segment("A", ack=5))
    assert [str(s.flags) for s in link.hear(half.port, 30, 1)] == ["R"]
    # ESTABLISHED
    gone(Peer(link, 7))
    # CLOSE-WAIT, then LAST-ACK: the source sends its data, which is not acknowledged, and closes.
    p = Peer(link, 19)
    p.say("PA", b"3000\n", window=0)
    p.hear(0.3, 10)
    p.say("FA", at=5, window=0)
    gone(p, at=6)
    # FIN-WAIT-1: the data and the FIN are not acknowledged.
    p = Peer(link, 19)
    p.say("PA", b"10\n")
    assert any("F" in str(s.flags) for s in p.hear(5, 2))
    gone(p, at=3)
    # FIN-WAIT-2: the data and the FIN are acknowledged.
    p = Peer(link, 19)
    p.say("PA", b"10\n")
    p.hear(1, 2)
    p.say("A", at=3, ack=11)
    gone(p, at=3, ack=11)
    # CLOSING: the FINs cross.
    p = Peer(link, 19)
    p.say("PA", b"10\n")
    p.hear(1, 2)
    p.say("FA", at=3)
    gone(p, at=4)
    # LAST-ACK: the peer's FIN comes first, and the stack's FIN is not acknowledged.
    p = Peer(link, 9)
    p.say("FPA", b"abc")
    assert any("F" in str(s.flags) for s in p.hear(1, 4))
    gone(p, at=4)
    # TIME-WAIT: a reset does not end it (RFC 1337). When the FIN is repeated, it is acknowledged again.
    p = Peer(link, 19)
    p.say("PA", b"10\n")
    p.hear(1, 2)
    p.say("FA", at=3, ack=11)
    p.hear(0.2, 10)
    p.say("R", at=4)
    p.say("FA", at=3, ack=11)
    assert [str(s.flags) for s in p.hear(30, 1)] == ["A"]
    echoes()


def sack_games():
    """For two seconds, send SACK blocks of single bytes, of no bytes, of bytes that were not sent, reversed ones, and
    ones that are withdrawn later. After that, all data must arrive."""
    p = Peer(Link(), 19, sack=True)
    n = 200000
    p.say("PA", b"%d\n" % n)
    p.seq += 7
    start, got, heard, at = p.ack, {}, 0, 0
    honest, end = time.time() + 2, time.time() + 60
    while at < n and time.time() < end:
        for s in p.hear(0.1, 8):
            heard += 1
            k = (s.seq - start) % 2**32
            got[k] = max(len(s.payload), got.get(k, 0))
        # A retransmission may begin at another position.
        for k in sorted(got):
            if k <= at < k + got[k]:
                at = k + got[k]
        p.ack = (start + at) % 2**32

        def block(low, high):
            return ((p.ack + low) % 2**32, (p.ack + high) % 2**32)

        k = random.randint(0, 20000)
        for lies in (
            [block(k + 2 * i, k + 2 * i + 1) for i in range(4)],
            [block(9, 3), block(5, 5)],
            [block(10000000, 20000000)],
            [block(-5000, -4000), block(1, 2**31 - 1)],
            [block(1448, 2896), block(1448, 2896)],
        ):
            if time.time() > honest:
                break
            p.say("A", options=[("NOP", None), ("NOP", None), ("SAck", tuple(x for b in lies for x in b))])
        # Whatever was reported, the peer has nothing after this position.
        p.say("A")
    assert at >= n, (at, heard)
    assert heard < 20 * n / 1000, heard


def slow_readers():
    """200 clients request a megabyte each and read nothing. Other clients are served."""
    idle = []
    for _ in range(200):
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect((HOST, 19))
        s.sendall(b"1000000\n")
        idle.append(s)
    for _ in range(20):
        echoes()
    # The slow clients are served too, once they read.
    for s in idle[:20]:
        s.settimeout(100)
        n = 0
        while n < 1000000:
            b = s.recv(65536)
            assert b
            n += len(b)
    for s in idle:
        s.close()


def garbage():
    link = Link()
    for _ in range(20000):
        body = bytes(random.getrandbits(8) for _ in range(random.randint(0, 100)))
        try:
            link.put(IP(src=PEER, dst=HOST, proto=random.choice([0, 1, 6, 17, 58, 255])) / body)
        except OSError:
            pass
    echoes()


CASES = {f.__name__: f for f in (resets, single_bytes, tiny_mss, fin_first, blind, fragments, datagrams, zero_window, acknowledgments, small_path, reset_states, sack_games, slow_readers, garbage)}

if len(sys.argv) > 1:
    CASES[sys.argv[1]]()
