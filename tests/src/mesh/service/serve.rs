//! The connections of a service, and the requests on them.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::Service;

/// Accepts connections until it is cancelled, and answers the requests on them.
pub(super) async fn serve<F, A>(listener: TcpListener, service: Arc<Service>, answer: F)
where
    F: Fn(Arc<Service>, Request<Incoming>) -> A + Copy + Send + Sync + 'static,
    A: Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send + 'static,
{
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let _ = stream.set_nodelay(true);
        let service = Arc::clone(&service);
        tokio::spawn(async move {
            let answers = service_fn(|request| answer(Arc::clone(&service), request));
            // An error means that the caller has left, which is counted with its request.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answers)
                .await;
        });
    }
}
