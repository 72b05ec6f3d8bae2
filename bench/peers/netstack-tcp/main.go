// netstack-tcp DEVICE ADDRESS plain: gVisor's TCP on a TUN device, with echo on port 7, a
// sink on 9 and a source on 19 ("N\n" is answered by N bytes). One thread runs Go code.
// Its link has no segmentation offload for TUN devices.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/link/tun"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

func fatal(what string, err any) {
	fmt.Fprintln(os.Stderr, "netstack-tcp:", what, err)
	os.Exit(1)
}

func main() {
	if len(os.Args) != 4 || os.Args[3] != "plain" {
		fmt.Fprintln(os.Stderr, "netstack-tcp DEVICE ADDRESS plain")
		os.Exit(2)
	}
	runtime.GOMAXPROCS(1)
	fd, err := tun.Open(os.Args[1])
	if err != nil {
		fatal("device", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		fatal("device", err)
	}
	link, err := fdbased.New(&fdbased.Options{FDs: []int{fd}, MTU: 1500})
	if err != nil {
		fatal("link", err)
	}
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	sack := tcpip.TCPSACKEnabled(true)
	cubic := tcpip.CongestionControlOption("cubic")
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: 1 << 20, Max: 4 << 20}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: 1 << 20, Max: 4 << 20}
	for _, option := range []tcpip.SettableTransportProtocolOption{&sack, &cubic, &receive, &send} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			fatal("option", err)
		}
	}
	if err := s.CreateNIC(1, link); err != nil {
		fatal("NIC", err)
	}
	address := tcpip.AddrFromSlice(net.ParseIP(os.Args[2]).To4())
	if err := s.AddProtocolAddress(1, tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: address.WithPrefix(),
	}, stack.AddressProperties{}); err != nil {
		fatal("address", err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	for port, serve := range map[uint16]func(net.Conn){7: echo, 9: sink, 19: source} {
		l, err := gonet.ListenTCP(s, tcpip.FullAddress{NIC: 1, Addr: address, Port: port}, ipv4.ProtocolNumber)
		if err != nil {
			fatal("listen", err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					fatal("accept", err)
				}
				go func() {
					defer c.Close()
					serve(c)
				}()
			}
		}()
	}
	select {}
}

func echo(c net.Conn) {
	b := make([]byte, 65536)
	for {
		n, err := c.Read(b)
		if err != nil {
			return
		}
		if _, err := c.Write(b[:n]); err != nil {
			return
		}
	}
}

func sink(c net.Conn) {
	b := make([]byte, 262144)
	all := 0
	for {
		n, err := c.Read(b)
		all += n
		if err == io.EOF {
			fmt.Fprint(c, all)
			return
		}
		if err != nil {
			return
		}
	}
}

func source(c net.Conn) {
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return
	}
	left, _ := strconv.Atoi(strings.TrimSpace(line))
	b := make([]byte, 262144)
	for left > 0 {
		n, err := c.Write(b[:min(left, len(b))])
		if err != nil {
			return
		}
		left -= n
	}
}
