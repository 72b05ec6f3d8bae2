// smoltcp-tcp DEVICE ADDRESS plain: smoltcp on a TUN device, with echo on port 7, a sink on
// 9 and a source on 19 ("N\n" is answered by N bytes), on one thread. smoltcp has no
// segmentation offload.
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{wait, Medium, TunTapInterface};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use std::os::unix::io::AsRawFd;

struct Served {
    handle: SocketHandle,
    port: u16,
    // Of the source: bytes to send, once it was asked. Of the sink: bytes received.
    count: Option<u64>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.len() != 4 || arguments[3] != "plain" {
        eprintln!("smoltcp-tcp DEVICE ADDRESS plain");
        std::process::exit(2);
    }
    let mut device = TunTapInterface::new(&arguments[1], Medium::Ip).expect("device");
    let fd = device.as_raw_fd();
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = std::process::id() as u64;
    let mut iface = Interface::new(config, &mut device, Instant::now());
    let address: IpAddress = arguments[2].parse().expect("address");
    iface.update_ip_addrs(|all| all.push(IpCidr::new(address, 24)).unwrap());
    let mut sockets = SocketSet::new(vec![]);
    let mut served = Vec::new();
    for (port, number, size) in [(7u16, 80, 65536usize), (9, 4, 1 << 20), (19, 4, 1 << 20)] {
        for _ in 0..number {
            let buffer = || tcp::SocketBuffer::new(vec![0; size]);
            let mut socket = tcp::Socket::new(buffer(), buffer());
            socket.set_congestion_control(tcp::CongestionControl::Cubic);
            socket.set_nagle_enabled(false);
            socket.listen(port).unwrap();
            served.push(Served { handle: sockets.add(socket), port, count: None });
        }
    }
    loop {
        iface.poll(Instant::now(), &mut device, &mut sockets);
        let mut again = false;
        for s in served.iter_mut() {
            let socket = sockets.get_mut::<tcp::Socket>(s.handle);
            if !socket.is_open() {
                s.count = None;
                socket.listen(s.port).unwrap();
                continue;
            }
            match s.port {
                7 => again |= echo(socket),
                9 => again |= sink(socket, &mut s.count),
                _ => again |= source(socket, &mut s.count),
            }
            if socket.state() == tcp::State::CloseWait && !socket.can_recv() {
                if s.port == 9 {
                    let text = s.count.unwrap_or(0).to_string();
                    let _ = socket.send_slice(text.as_bytes());
                }
                socket.close();
            }
        }
        if !again {
            let delay = iface.poll_delay(Instant::now(), &sockets);
            wait(fd, delay).expect("wait");
        }
    }
}

fn echo(socket: &mut tcp::Socket) -> bool {
    let mut buffer = [0u8; 65536];
    let room = socket.send_capacity() - socket.send_queue();
    if !socket.can_recv() || room == 0 {
        return false;
    }
    let most = room.min(buffer.len());
    match socket.recv_slice(&mut buffer[..most]) {
        Ok(n) if n > 0 => socket.send_slice(&buffer[..n]).is_ok(),
        _ => false,
    }
}

fn sink(socket: &mut tcp::Socket, count: &mut Option<u64>) -> bool {
    let mut all = 0;
    while socket.can_recv() {
        match socket.recv(|b| (b.len(), b.len())) {
            Ok(n) if n > 0 => all += n as u64,
            _ => break,
        }
    }
    *count = Some(count.unwrap_or(0) + all);
    all > 0
}

fn source(socket: &mut tcp::Socket, count: &mut Option<u64>) -> bool {
    if count.is_none() && socket.can_recv() {
        let line = socket.recv(|b| (b.len(), String::from_utf8_lossy(b).into_owned())).unwrap_or_default();
        *count = line.trim().parse().ok();
    }
    let mut all = 0;
    while let Some(left) = count.filter(|n| *n > 0) {
        if !socket.can_send() {
            break;
        }
        match socket.send(|b| { let n = (b.len() as u64).min(left) as usize; (n, n) }) {
            Ok(n) if n > 0 => {
                *count = Some(left - n as u64);
                all += n;
            }
            _ => break,
        }
    }
    all > 0
}
