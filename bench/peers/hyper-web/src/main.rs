//! What applications do, on hyper 1.x and tokio: the peer of subjects/WebApp.hs, which says what each path does. It has
//! no WebSockets and no compression, for which hyper has no part. One worker thread runs a current-thread runtime;
//! several run the multi-threaded one with TOKIO_WORKER_THREADS workers. HTTP/1.1, and HTTP/2 with prior knowledge.
//!
//!   hyper-web [--port P]     prints "listening on P"; ends on SIGTERM

use std::convert::Infallible;
use std::net::SocketAddr;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

#[derive(Clone, Serialize)]
struct Item {
    id: i64,
    name: String,
    category: &'static str,
    price: i64,
    quantity: i64,
    active: bool,
    tags: Vec<String>,
    total: i64,
}

#[derive(Serialize)]
struct Items {
    items: Vec<Item>,
    count: usize,
}

fn make_items() -> Vec<Item> {
    let categories = ["tools", "garden", "kitchen", "other"];
    (1..=50)
        .map(|n: i64| Item {
            id: n,
            name: format!("Item {n}"),
            category: categories[(n % 4) as usize],
            price: 100 + 37 * n,
            quantity: n % 7,
            active: n % 2 == 0,
            tags: vec!["new".to_owned(), format!("tag-{}", n % 5)],
            total: 0,
        })
        .collect()
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

fn answer(kind: &'static str, body: Bytes) -> Answer {
    let mut response = Response::new(Full::new(body).boxed());
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

async fn served(request: Request<Incoming>, items: &'static [Item]) -> Result<Answer, hyper::Error> {
    match request.uri().path() {
        "/sum" => {
            let query = request.uri().query().unwrap_or("").to_owned();
            let body = request.into_body().collect().await?.to_bytes();
            let number = |text: &str| text.trim().parse::<i64>().unwrap_or(0);
            let total: i64 = query
                .split('&')
                .filter_map(|pair| pair.split_once('='))
                .map(|(_, value)| number(value))
                .sum();
            let more = std::str::from_utf8(&body).map(number).unwrap_or(0);
            Ok(answer("text/plain", Bytes::from((total + more).to_string())))
        }
        "/items" => {
            let times = request
                .uri()
                .query()
                .and_then(|query| query.strip_prefix("m="))
                .and_then(|m| m.parse::<i64>().ok());
            let times = times.unwrap_or(1);
            let found: Vec<Item> = items
                .iter()
                .map(|item| Item {
                    total: item.price * item.quantity * times,
                    ..item.clone()
                })
                .collect();
            let count = found.len();
            let body = serde_json::to_vec(&Items { items: found, count }).expect("JSON");
            Ok(answer("application/json", Bytes::from(body)))
        }
        "/upload" => {
            let mut body = request.into_body();
            let mut size = 0;
            while let Some(frame) = body.frame().await {
                size += frame?.data_ref().map_or(0, Bytes::len);
            }
            Ok(answer("text/plain", Bytes::from(size.to_string())))
        }
        "/weft.Bench/Sum" => {
            let message = request.into_body().collect().await?.to_bytes();
            let word = |at: usize| {
                message
                    .get(at..at + 4)
                    .map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
            };
            let total = word(5).wrapping_add(word(9)).to_be_bytes();
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            let data = Bytes::from([&[0, 0, 0, 0, 4], &total[..]].concat());
            let frames = [Frame::data(data), Frame::trailers(trailers)].map(Ok::<_, Infallible>);
            let mut response = Response::new(StreamBody::new(both(frames)).boxed());
            response
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            Ok(response)
        }
        _ => {
            let mut missing = answer("text/plain", Bytes::new());
            *missing.status_mut() = StatusCode::NOT_FOUND;
            Ok(missing)
        }
    }
}

/// A stream of two frames.
fn both<T>(frames: [T; 2]) -> impl futures_core::Stream<Item = T> {
    struct Frames<T>(std::array::IntoIter<T, 2>);
    impl<T> Unpin for Frames<T> {}
    impl<T> futures_core::Stream for Frames<T> {
        type Item = T;
        fn poll_next(mut self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<Option<T>> {
            std::task::Poll::Ready(self.0.next())
        }
    }
    Frames(frames.into_iter())
}

async fn serve(port: u16, items: &'static [Item]) -> std::io::Result<()> {
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
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service_fn(|request| served(request, items)))
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
            eprintln!("usage: hyper-web [--port P]");
            std::process::exit(2);
        }
    };
    let workers = std::env::var("TOKIO_WORKER_THREADS").unwrap_or_default();
    let mut builder = if workers == "1" {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    builder.enable_io().build()?.block_on(serve(port, make_items().leak()))
}
