"""A ring of three switches, and a bridge that is not controlled with a port at each of them and a host.

Prints what is wrong, one line each, and "done".
Arguments: the controller's port, the OpenFlow version, and whether the bridge forwards LLDP frames (0 or 1).
"""
import re
import sys
import time
from functools import partial

from mininet.net import Mininet
from mininet.node import OVSSwitch, RemoteController

port, version, forwards = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "1"
net = Mininet(
    switch=partial(OVSSwitch, datapath="user", protocols=version),
    controller=lambda name: RemoteController(name, ip="127.0.0.1", port=port),
    waitConnected=True,
)
net.addController("c0")
switches = [net.addSwitch("s%d" % i) for i in (1, 2, 3)]
hosts = [net.addHost("h%d" % i) for i in (1, 2, 3, 4)]
bridge = net.addHost("b", ip=None)
for i in range(3):
    net.addLink(switches[i], hosts[i])
    net.addLink(switches[i], switches[(i + 1) % 3])
    net.addLink(bridge, switches[i])
net.addLink(bridge, hosts[3])
try:
    setup = ["ip link add hub type bridge"]
    if forwards:
        setup += ["echo 0x4000 > /sys/class/net/hub/bridge/group_fwd_mask"]
    net.start()
    setup += ["ip link set %s master hub up" % interface.name for interface in bridge.intfList()]
    for command in setup + ["ip link set hub up"]:
        problem = bridge.cmd(command).strip()
        if problem:
            print("%s: %s" % (command, problem))
    for host in hosts:
        host.cmd("ethtool -K %s tx off" % host.defaultIntf().name)
    # The links are found at once, and ports settle after a second.
    time.sleep(8)
    # The first packets may be lost while hosts are looked for.
    for a in hosts:
        for b in hosts:
            if a is not b:
                a.cmd("ping -c 1 -W 1 %s" % b.IP())
    for a in hosts:
        for b in hosts:
            if a is not b:
                out = a.cmd("ping -c 4 -i 0.2 -W 3 %s" % b.IP())
                if not re.search(r" 4 received, 0% packet loss", out):
                    print("%s to %s: %s" % (a.name, b.name, " ".join(out.splitlines()[-3:])))
    received = lambda h: int(h.cmd("cat /sys/class/net/%s/statistics/rx_packets" % h.defaultIntf().name))
    before = [received(h) for h in hosts]
    hosts[0].cmd("ping -c 3 -i 0.2 -W 1 10.0.0.77")
    time.sleep(3)
    for host, n in zip(hosts, before):
        if received(host) - n > 100:
            print("%s received %d packets after three to nobody" % (host.name, received(host) - n))
    print("done")
finally:
    net.stop()
