//! The WAI pong application's peer: hyper 1.x on tokio, set up as its documentation does for speed. One worker thread
//! runs a current-thread runtime; several run the multi-threaded one with TOKIO_WORKER_THREADS workers. TCP_NODELAY,
//! HTTP/1 with keep-alive and pipelining off, date kept by hyper.
//!
//!   hyper-pong [--port P]     prints "listening on P"; ends on SIGTERM
//!
//! GET / answers five bytes, GET /browser the same with five fields, POST /echo the body that came.

use std::convert::Infallible;
use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderValue, CACHE_CONTROL, CONTENT_TYPE, ETAG, LAST_MODIFIED, VARY};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let pong = Bytes::from_static(b"Pong!");
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = match (method, path.as_str()) {
        (Method::POST, "/echo") => match request.into_body().collect().await {
            Ok(body) => Response::new(Full::new(body.to_bytes())),
            Err(_) => {
                let mut bad = Response::new(Full::new(Bytes::new()));
                *bad.status_mut() = StatusCode::BAD_REQUEST;
                bad
            }
        },
        (Method::GET, "/browser") => {
            let mut page = Response::new(Full::new(pong));
            let fields = page.headers_mut();
            fields.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
            fields.insert(ETAG, HeaderValue::from_static("\"5d8c72a5edda8d6a\""));
            fields.insert(LAST_MODIFIED, HeaderValue::from_static("Sun, 22 Nov 2026 00:00:00 GMT"));
            fields.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
            page
        }
        _ => Response::new(Full::new(pong)),
    };
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}

async fn serve(port: u16) -> std::io::Result<()> {
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
        tokio::spawn(async move {
            // What a client does wrong ends its connection and nothing else.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer))
                .await;
        });
    }
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let port = match arguments.as_slice() {
        [] => 0,
        [flag, port] if flag == "--port" => port.parse().expect("a port number"),
        _ => {
            eprintln!("usage: hyper-pong [--port P]");
            std::process::exit(2);
        }
    };
    let workers = std::env::var("TOKIO_WORKER_THREADS").unwrap_or_default();
    let mut builder = if workers == "1" {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    builder.enable_io().build()?.block_on(serve(port))
}
