//! The requests of a service. Each request runs the steps of its path.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use futures::future::try_join_all;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;

use super::Service;
use super::plan::{self, Abandoned, Call, Compute, OnFailure, Operation, Route, Step};
use super::stats::{End, OperationStats};

/// The header of a failed request's answer with the failed call, and the failure.
const FAILED: HeaderName = HeaderName::from_static("x-mesh-failed");

/// The call because of which a request failed.
#[derive(Debug)]
struct Failure {
    service: String,
    end: End,
}

/// The data of a request that its steps use.
struct Context {
    /// The index of the request's operation.
    operation: usize,
    path: String,
    /// The headers that the request's calls inherit.
    inherited: HeaderMap,
    workflow: String,
}

type Steps<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

/// Answers a request.
pub(super) async fn answer(
    service: Arc<Service>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let Some(operation) = service.station.classify(&path) else {
        return Ok(plain(StatusCode::NOT_FOUND, "no operation here\n"));
    };
    let context = Arc::new(Context {
        operation,
        path,
        inherited: service.inherited(operation, request.headers()),
        workflow: workflow(request.headers()),
    });
    // The work begins when the whole request has arrived.
    let _ = request.into_body().collect().await;
    service.note(&context, |counts| counts.received += 1);
    let caller = Caller {
        service: Arc::clone(&service),
        context: Arc::clone(&context),
        answered: false,
    };
    let (worker, of) = (Arc::clone(&service), Arc::clone(&context));
    let work = async move { worker.work(&of).await };
    let ended = match service.config.behaviour.abandoned {
        Abandoned::Cancel => work.await,
        // The work runs in a separate task, which continues if this future is dropped.
        Abandoned::Finish => tokio::spawn(work).await.unwrap_or(Ok(())),
    };
    caller.answered();
    let mut response = match ended {
        Ok(()) => plain(StatusCode::OK, "ok\n"),
        Err(failure) => failed(&failure),
    };
    for (name, value) in &service.config.behaviour.response_headers {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
            response.headers_mut().append(name, value);
        }
    }
    Ok(response)
}

impl Service {
    fn note(&self, context: &Context, change: impl Fn(&mut OperationStats)) {
        let path = &self.config.behaviour.operations[context.operation].path;
        self.count(|tally| tally.request(path, &context.workflow, change));
    }

    /// Runs the steps of a complete request.
    async fn work(&self, context: &Context) -> Result<(), Failure> {
        let _thread = match &self.threads {
            // The semaphore is never closed, so this waits until a thread is free.
            Some(threads) => threads.acquire().await.ok(),
            None => None,
        };
        let operation = &self.config.behaviour.operations[context.operation];
        let ended = self.in_sequence(&operation.steps, context).await;
        self.note(context, |counts| match ended {
            Ok(()) => counts.completed += 1,
            Err(_) => counts.failed += 1,
        });
        ended
    }

    async fn in_sequence(&self, steps: &[Step], context: &Context) -> Result<(), Failure> {
        for step in steps {
            self.step(step, context).await?;
        }
        Ok(())
    }

    fn step<'a>(&'a self, step: &'a Step, context: &'a Context) -> Steps<'a> {
        Box::pin(async move {
            match step {
                Step::Compute(compute) => {
                    self.compute(compute, context).await;
                    Ok(())
                }
                Step::Call(call) => self.call(call, context).await,
                Step::Sequence(steps) => self.in_sequence(steps, context).await,
                Step::Parallel(steps) => {
                    let all = steps.iter().map(|step| self.step(step, context));
                    try_join_all(all).await.map(|_| ())
                }
            }
        })
    }

    async fn compute(&self, compute: &Compute, context: &Context) {
        let time = {
            let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
            compute.draw(self.config.behaviour.speed, &mut rng)
        };
        let mut ticket = self
            .station
            .enter(context.operation, &context.path, Some(time), None);
        // An error means that the process is ending.
        let _ = ticket.served().await;
    }

    async fn call(&self, call: &Call, context: &Context) -> Result<(), Failure> {
        if call.at_once {
            let all = (0..call.count).map(|_| self.call_once(call, context));
            return try_join_all(all).await.map(|_| ());
        }
        for _ in 0..call.count {
            self.call_once(call, context).await?;
        }
        Ok(())
    }

    async fn call_once(&self, call: &Call, context: &Context) -> Result<(), Failure> {
        let ms = call
            .timeout_ms
            .unwrap_or(self.config.behaviour.call_timeout_ms);
        // The timeout was checked when the service started.
        let timeout = plan::millis(ms).unwrap_or_default();
        let sent = self
            .client
            .send(call, &context.path, &context.inherited, timeout);
        let end = sent.await;
        self.count(|tally| tally.call(&call.service, end));
        if end == End::Ok || call.on_failure == OnFailure::Ignore {
            return Ok(());
        }
        Err(Failure {
            service: call.service.clone(),
            end,
        })
    }

    /// Returns the headers that calls inherit. They are those that the configuration names, and
    /// those by which calls are routed.
    fn inherited(&self, operation: usize, headers: &HeaderMap) -> HeaderMap {
        let behaviour = &self.config.behaviour;
        let Operation { steps, .. } = &behaviour.operations[operation];
        let hashed = plan::calls(steps)
            .into_iter()
            .filter_map(|c| match &c.route {
                Route::Hash(name) => Some(name),
                _ => None,
            });
        let mut inherited = HeaderMap::new();
        for name in behaviour.propagate.iter().chain(hashed) {
            let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
                continue;
            };
            if inherited.contains_key(&name) {
                continue;
            }
            for value in headers.get_all(&name) {
                inherited.append(name.clone(), value.clone());
            }
        }
        inherited
    }
}

/// Detects a caller that leaves, because hyper then drops the future that answers the caller.
struct Caller {
    service: Arc<Service>,
    context: Arc<Context>,
    answered: bool,
}

impl Caller {
    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if !self.answered {
            self.service
                .note(&self.context, |counts| counts.abandoned += 1);
        }
    }
}

/// Returns the workflow that a request names, for the statistics. Empty if the request names none.
fn workflow(headers: &HeaderMap) -> String {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    if let Some(name) = text("x-headgate-workflow") {
        return name.to_owned();
    }
    let member = text("baggage")
        .unwrap_or_default()
        .split(',')
        .find_map(|member| member.trim().strip_prefix("workflow="));
    let value = member.unwrap_or_default();
    value
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Returns the answer to a failed request. No client can take it for a refusal by this process.
fn failed(failure: &Failure) -> Response<Full<Bytes>> {
    let (status, how) = match failure.end {
        End::TimedOut => (StatusCode::GATEWAY_TIMEOUT, "timed out"),
        End::Refused => (StatusCode::BAD_GATEWAY, "refused"),
        End::Ok | End::Failed => (StatusCode::BAD_GATEWAY, "failed"),
    };
    let mut response = plain(status, "a call failed\n");
    if let Ok(value) = HeaderValue::from_str(&format!("{} {how}", failure.service)) {
        response.headers_mut().insert(FAILED, value);
    }
    response
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workflow_is_read_from_the_header_or_the_baggage() {
        let mut headers = HeaderMap::new();
        assert_eq!(workflow(&headers), "");
        let baggage = HeaderValue::from_static("user=1, workflow=checkout;ttl=3");
        headers.insert("baggage", baggage);
        assert_eq!(workflow(&headers), "checkout");
        headers.insert("x-headgate-workflow", HeaderValue::from_static("scan"));
        assert_eq!(workflow(&headers), "scan");
    }
}
