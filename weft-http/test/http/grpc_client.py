"""A client of gRPC, by Debian's python3-grpcio: calls the methods of Spec.Grpc, and prints a line for each case.

Arguments: the port, the name of a scenario, and the file with the authority's certificate if the server speaks TLS.
Messages are strings of bytes, without protocol buffers."""

import sys
import threading
import time

import grpc

LIMIT = 60
OPTIONS = [("grpc.enable_http_proxy", 0)]


def channel(port, authority):
    if authority is None:
        return grpc.insecure_channel("127.0.0.1:%d" % port, OPTIONS)
    with open(authority, "rb") as file:
        return grpc.secure_channel("localhost:%d" % port, grpc.ssl_channel_credentials(file.read()), OPTIONS)


def name(method):
    return "/weft.Test/" + method


def status_of(act):
    """The status with which a call ends, and its message."""
    try:
        act()
        return "OK"
    except grpc.RpcError as e:
        return "%s: %s" % (e.code().name, e.details())


def until(condition):
    end = time.monotonic() + LIMIT
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def scenario_calls(c):
    """The four kinds of calls."""
    echo = c.unary_unary(name("Echo"))
    print("unary", echo(b"hello", timeout=LIMIT), echo(b"", timeout=LIMIT))
    several = list(c.unary_stream(name("Count"))(b"1000", timeout=LIMIT))
    print("server", len(several), several[0], several[-1])
    print("client", c.stream_unary(name("Sum"))((b"x" * i for i in range(1000)), timeout=LIMIT))
    print("client, nothing", c.stream_unary(name("Sum"))(iter(()), timeout=LIMIT))
    # Each message is sent when the answer to the one before has come.
    answered = threading.Semaphore(1)

    def ask():
        for i in range(200):
            answered.acquire()
            yield b"%d" % i

    came = []
    for message in c.stream_stream(name("Talk"))(ask(), timeout=LIMIT):
        came.append(message)
        answered.release()
    print("both", came == [b"%d" % i for i in range(200)])


def scenario_large(c):
    """Messages of 3 MB."""
    message = bytes(range(256)) * 11719
    echo = c.unary_unary(name("Echo"))
    print("unary", [echo(message, timeout=LIMIT) == message for _ in range(5)])
    talk = c.stream_stream(name("Talk"))
    print("both", [m == message for m in talk(iter([message] * 3), timeout=LIMIT)])


def scenario_statuses(c):
    """Calls that end with an error: without a message, behind messages, and when the application throws."""
    print("at once", status_of(lambda: c.unary_unary(name("Fail"))(b"", timeout=LIMIT)))
    came = []
    print("late", status_of(lambda: came.extend(c.unary_stream(name("FailLate"))(b"", timeout=LIMIT))), came)
    print("unknown", status_of(lambda: c.unary_unary(name("Nothing"))(b"", timeout=LIMIT)).split(":")[0])
    # What came before the reset may be lost.
    print("throws", status_of(lambda: list(c.unary_stream(name("Throw"))(b"", timeout=LIMIT))).split(":")[0])
    # The channel works afterwards.
    print(c.unary_unary(name("Echo"))(b"still", timeout=LIMIT))


def scenario_metadata(c):
    """Metadata at both ends, binary ones among them."""
    answer, call = c.unary_unary(name("Metadata")).with_call(
        b"", timeout=LIMIT, metadata=[("x-own", "some text"), ("x-own-bin", bytes(range(256)))]
    )
    first, last = dict(call.initial_metadata()), dict(call.trailing_metadata())
    print(answer, first.get("x-first"), last.get("x-last"), last.get("x-last-bin") == bytes(range(256)))


def scenario_interrupted(c):
    """A deadline that expires, and calls that are cancelled: the application is interrupted."""
    running = lambda: int(c.unary_unary(name("Running"))(b"", timeout=LIMIT))
    print("deadline", status_of(lambda: c.unary_unary(name("Sleep"))(b"", timeout=1)).split(":")[0])
    print("gone", until(lambda: running() == 0))
    call = c.unary_unary(name("Sleep")).future(b"", timeout=LIMIT)
    print("runs", until(lambda: running() == 1))
    call.cancel()
    print("cancelled", call.cancelled(), until(lambda: running() == 0))
    # A stream of messages without an end, which is cancelled in the middle.
    endless = c.unary_stream(name("Endless"))(b"", timeout=LIMIT)
    for _ in range(100):
        next(endless)
    endless.cancel()
    print("endless", until(lambda: running() == 0))
    print(c.unary_unary(name("Echo"))(b"still", timeout=LIMIT))


def scenario_many(c):
    """More calls at once than streams are allowed."""
    calls = [c.unary_unary(name("Echo")).future(b"%d" % i, timeout=LIMIT) for i in range(1000)]
    print(sum(call.result() == b"%d" % i for i, call in enumerate(calls)))


if __name__ == "__main__":
    with channel(int(sys.argv[1]), sys.argv[3] if len(sys.argv) > 3 else None) as opened:
        globals()["scenario_" + sys.argv[2]](opened)
