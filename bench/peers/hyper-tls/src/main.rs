//! A peer of `weft serve` and of the WAI pong over TLS: hyper 1.x with rustls (ring) on tokio, HTTP/1.1 or HTTP/2 as
//! the client asks for by ALPN. One worker thread runs a current-thread runtime; several run the multi-threaded one
//! with TOKIO_WORKER_THREADS workers. TCP_NODELAY; tickets for sessions.
//!
//!   hyper-tls [--port P] --certificate FILE --key FILE     prints "listening on P"; ends on SIGTERM
//!
//! GET / answers five bytes; /1k, /16k and /1m as many bytes from memory. The body of a request is read before.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderValue, CONTENT_TYPE};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

type Failure = Box<dyn std::error::Error>;

static LARGE: [u8; 1 << 20] = [b'x'; 1 << 20];

async fn answer(mut request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    while let Some(Ok(_)) = request.body_mut().frame().await {}
    let body = match request.uri().path() {
        "/1k" => Bytes::from_static(&LARGE[..1 << 10]),
        "/16k" => Bytes::from_static(&LARGE[..16 << 10]),
        "/1m" => Bytes::from_static(&LARGE),
        _ => Bytes::from_static(b"Pong!"),
    };
    let mut response = Response::new(Full::new(body));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}

fn tls(certificate: &str, key: &str) -> Result<TlsAcceptor, Failure> {
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
    let provider = Arc::new(ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = ring::Ticketer::new()?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn serve(port: u16, acceptor: TlsAcceptor) -> Result<(), Failure> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], port)).into())?;
    socket.listen(4096)?;
    let listener = TcpListener::from_std(socket.into())?;
    println!("listening on {}", listener.local_addr()?.port());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            // What a client does wrong ends its connection and nothing else.
            let Ok(stream) = acceptor.accept(stream).await else { return };
            if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                let _ = http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service_fn(answer))
                    .await;
            } else {
                let _ = http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service_fn(answer))
                    .await;
            }
        });
    }
}

fn main() -> Result<(), Failure> {
    let (mut port, mut certificate, mut key) = (0, String::new(), String::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match flag.as_str() {
            "--port" => port = value.parse()?,
            "--certificate" => certificate = value,
            "--key" => key = value,
            _ => {
                eprintln!("usage: hyper-tls [--port P] --certificate FILE --key FILE");
                std::process::exit(2);
            }
        }
    }
    let acceptor = tls(&certificate, &key)?;
    let workers = std::env::var("TOKIO_WORKER_THREADS").unwrap_or_default();
    let mut builder = if workers == "1" {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    builder.enable_io().build()?.block_on(serve(port, acceptor))
}
