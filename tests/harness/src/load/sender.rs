//! Sends due requests, and reads the answers.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt, Full};
use tokio::sync::{Notify, mpsc};
use tokio::task::LocalSet;

use super::closed;
use super::pool::Pool;
use super::record::{Ended, Outcome, Recorder};
use super::schedule::{Due, schedule};
use super::spec::{LoadSpec, Protocol, RequestType};
use super::sse::Tokens;
use crate::clock;

const SEQ: HeaderName = HeaderName::from_static("x-seq");
const SERVICE: HeaderName = HeaderName::from_static("x-backend-service-us");
const ATTEMPT: HeaderName = HeaderName::from_static("x-envoy-attempt-count");

/// Longest sleep of the pacing thread, which must notice a stop.
const PACE_SLICE: Duration = Duration::from_millis(50);

/// A checked specification, ready to send.
pub(super) struct Plan {
    due: Vec<Due>,
    templates: Vec<Template>,
}

struct Template {
    request: Request<Full<Bytes>>,
    abort_after: Option<Duration>,
    retries: u32,
}

impl Plan {
    pub(super) fn new(spec: &LoadSpec) -> Result<Self> {
        spec.check()?;
        let templates = spec
            .types
            .iter()
            .map(|t| Template::new(spec, t))
            .collect::<Result<_>>()?;
        Ok(Self {
            due: schedule(spec),
            templates,
        })
    }
}

impl Template {
    fn new(spec: &LoadSpec, kind: &RequestType) -> Result<Self> {
        let wrong = || format!("types[{}]", kind.name);
        // With HTTP/2, the URI has the `:authority`. With HTTP/1.1, the request has a path and a
        // `Host` header.
        let uri = match spec.protocol {
            Protocol::Http1 => kind.path.clone(),
            Protocol::Http2 => format!("http://{}{}", spec.authority, kind.path),
        };
        let mut request = Request::new(Full::new(Bytes::from(kind.body.clone())));
        *request.method_mut() = Method::from_bytes(kind.method.as_bytes()).with_context(wrong)?;
        *request.uri_mut() = uri.parse::<Uri>().with_context(wrong)?;
        if spec.protocol == Protocol::Http1 {
            request
                .headers_mut()
                .insert(http::header::HOST, HeaderValue::from_str(&spec.authority)?);
        }
        for (name, value) in &kind.headers {
            let name = HeaderName::from_bytes(name.as_bytes()).with_context(wrong)?;
            request
                .headers_mut()
                .append(name, HeaderValue::from_str(value).with_context(wrong)?);
        }
        Ok(Self {
            request,
            abort_after: kind.abort_after,
            retries: kind.retries,
        })
    }
}

/// The shared state of a load's tasks.
pub(super) struct Shared {
    pub(super) start: Instant,
    templates: Vec<Template>,
    sequence: bool,
    pool: Pool,
    pub(super) recorder: Arc<Mutex<Recorder>>,
    pub(super) outstanding: Cell<usize>,
    all_answered: Notify,
}

/// Sends the whole load. Returns when all requests are answered or given up.
pub(super) fn send_all(
    spec: &LoadSpec,
    plan: Plan,
    recorder: &Arc<Mutex<Recorder>>,
    stop: &Arc<AtomicBool>,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let tasks = LocalSet::new();
    let mut targets = vec![spec.target];
    targets.extend(&spec.more_targets);
    let pool = Pool::new(targets, spec.protocol);
    tasks.block_on(&runtime, pool.fill(spec.connections))?;
    let (sender, receiver) = mpsc::unbounded_channel();
    let start = Instant::now();
    let (due, stopper) = (plan.due, Arc::clone(stop));
    let pacer = std::thread::Builder::new()
        .name("load-time".into())
        .spawn(move || pace(&due, start, &sender, &stopper))?;
    let shared = Rc::new(Shared {
        start,
        templates: plan.templates,
        sequence: spec.sequence,
        pool,
        recorder: Arc::clone(recorder),
        outstanding: Cell::new(0),
        all_answered: Notify::new(),
    });
    if !spec.clients.is_empty() {
        tasks.block_on(&runtime, closed::send(&shared, spec, stop));
    }
    tasks.block_on(
        &runtime,
        dispatch(
            Rc::clone(&shared),
            receiver,
            spec.max_outstanding,
            spec.drain,
        ),
    );
    // The pacer is joined only now, after it has dropped its end of the channel.
    let _ = pacer.join();
    super::lock(recorder).connections = shared.pool.opened();
    Ok(())
}

/// Hands over every arrival to the network thread when it falls due.
fn pace(due: &[Due], start: Instant, sender: &mpsc::UnboundedSender<Due>, stop: &AtomicBool) {
    clock::make_precise();
    for &arrival in due {
        let at = start + arrival.at;
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now >= at {
                break;
            }
            clock::sleep_until(at.min(now + PACE_SLICE));
        }
        if stop.load(Ordering::Relaxed) || sender.send(arrival).is_err() {
            return;
        }
    }
}

async fn dispatch(
    shared: Rc<Shared>,
    mut receiver: mpsc::UnboundedReceiver<Due>,
    max_outstanding: usize,
    drain: Duration,
) {
    let mut batch = Vec::new();
    while receiver.recv_many(&mut batch, 256).await > 0 {
        let now = Instant::now();
        let mut recorder = super::lock(&shared.recorder);
        for due in batch.drain(..) {
            let late = now.saturating_duration_since(shared.start + due.at);
            recorder.lateness.record(late);
            if let Some(due) = shared.offer(&mut recorder, due, late, max_outstanding) {
                let shared = Rc::clone(&shared);
                tokio::task::spawn_local(attempts(shared, due, max_outstanding));
            }
        }
    }
    let answered = async {
        while shared.outstanding.get() > 0 {
            shared.all_answered.notified().await;
        }
    };
    let _ = tokio::time::timeout(drain, answered).await;
}

/// Sends one request, and repeats it until it is served or has no attempts left.
async fn attempts(shared: Rc<Shared>, mut due: Due, max_outstanding: usize) {
    loop {
        let outcome = one(Rc::clone(&shared), due).await;
        if outcome.in_short() == Ended::Ok || due.attempt > shared.templates[due.kind].retries {
            return;
        }
        let next = Due {
            at: shared.start.elapsed(),
            attempt: due.attempt + 1,
            ..due
        };
        let mut recorder = super::lock(&shared.recorder);
        match shared.offer(&mut recorder, next, Duration::ZERO, max_outstanding) {
            Some(next) => due = next,
            None => return,
        }
    }
}

impl Shared {
    /// Records a request that is about to be sent. Returns `None` if too many requests are
    /// outstanding.
    fn offer(
        &self,
        recorder: &mut Recorder,
        due: Due,
        late: Duration,
        max_outstanding: usize,
    ) -> Option<Due> {
        let due = Due {
            seq: recorder.offer(&due, late),
            ..due
        };
        if self.outstanding.get() >= max_outstanding {
            recorder.finish(&due, Duration::ZERO, &Outcome::NotSent);
            return None;
        }
        self.outstanding.set(self.outstanding.get() + 1);
        recorder.max_outstanding = recorder.max_outstanding.max(self.outstanding.get());
        Some(due)
    }
}

/// Sends one request and records its outcome.
pub(super) async fn one(shared: Rc<Shared>, due: Due) -> Outcome {
    let template = &shared.templates[due.kind];
    let mut request = template.request.clone();
    if shared.sequence {
        request
            .headers_mut()
            .insert(SEQ, HeaderValue::from(due.seq));
    }
    if due.attempt > 1 {
        request
            .headers_mut()
            .insert(ATTEMPT, HeaderValue::from(due.attempt));
    }
    if let Some(service) = due.service {
        let micros = u64::try_from(service.as_micros()).unwrap_or(u64::MAX);
        request
            .headers_mut()
            .insert(SERVICE, HeaderValue::from(micros));
    }
    let exchange = exchange(&shared.pool, request, shared.start + due.at);
    let outcome = match template.abort_after {
        // Dropping the exchange closes the connection.
        Some(limit) => tokio::time::timeout(limit, exchange)
            .await
            .unwrap_or(Outcome::Aborted),
        None => exchange.await,
    };
    let latency = (shared.start + due.at).elapsed();
    super::lock(&shared.recorder).finish(&due, latency, &outcome);
    shared.outstanding.set(shared.outstanding.get() - 1);
    if shared.outstanding.get() == 0 {
        shared.all_answered.notify_one();
    }
    outcome
}

async fn exchange(pool: &Pool, request: Request<Full<Bytes>>, due: Instant) -> Outcome {
    let Ok((response, connection)) = pool.send(request).await else {
        return Outcome::TransportError;
    };
    let status = response.status().as_u16();
    let refused = refusal(status, response.headers());
    let service = response
        .headers()
        .get("x-backend-service-us")
        .and_then(|v| v.to_str().ok()?.parse().ok());
    let events = response.headers().get(http::header::CONTENT_TYPE);
    let mut tokens = events
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
        .then(Tokens::default);
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Outcome::TransportError;
        };
        if let (Some(tokens), Some(data)) = (&mut tokens, frame.data_ref()) {
            tokens.read(data, due.elapsed());
        }
    }
    pool.give_back(connection);
    Outcome::Answered {
        status,
        refused,
        service: Duration::from_micros(service.unwrap_or(0)),
        stream: tokens.and_then(|tokens| tokens.stream),
    }
}

/// Returns the reason of a refusal. It is from Headgate's header, or otherwise from the headers of
/// Envoy's own overload filters.
fn refusal(status: u16, headers: &HeaderMap) -> Option<String> {
    if let Some(value) = headers.get("x-headgate-refused") {
        let text = value.to_str().unwrap_or_default();
        let reason = text
            .split(';')
            .find_map(|field| field.trim().strip_prefix("reason="));
        return Some(reason.unwrap_or("unknown").to_owned());
    }
    match status {
        503 if headers.contains_key("x-envoy-overloaded") => Some("overloaded".to_owned()),
        503 | 429 => Some(format!("status_{status}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_detected_by_headgates_header_or_by_status() {
        let mut headers = HeaderMap::new();
        assert_eq!(refusal(200, &headers), None);
        assert_eq!(refusal(504, &headers), None);
        assert_eq!(refusal(429, &headers).as_deref(), Some("status_429"));
        headers.insert("x-envoy-overloaded", HeaderValue::from_static("true"));
        assert_eq!(refusal(503, &headers).as_deref(), Some("overloaded"));
        headers.insert(
            "x-headgate-refused",
            HeaderValue::from_static("policy=default/search; type=slow; reason=slo_p50"),
        );
        assert_eq!(refusal(503, &headers).as_deref(), Some("slo_p50"));
    }
}
