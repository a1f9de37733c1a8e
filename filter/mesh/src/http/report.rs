//! Reports to the admission server, and the server's answers. No stream waits for reports or
//! answers.

use headgate_core::host::Host;
use headgate_core::http::{Level, Proxy};

use crate::Filter;
use crate::engine::Callout;

/// Returns the request to the admission server that the host must send now, if any. Call this
/// function at each tick. Pass the request's answer, or `None` without an answer, to [`reported`].
pub fn report(filter: &mut Filter<impl Host>, proxy: &impl Proxy) -> Option<Callout> {
    let (host, engine, _) = filter.parts();
    let due = proxy
        .now()
        .and_then(|now| engine.beside_mut().report(host, now));
    due.unwrap_or_else(|error| {
        filter.complain(proxy, &error);
        None
    })
}

/// Handles the answer to a report. `answer` is the body. It is `None` if there was no answer, or if
/// the status was not 200.
pub fn reported(filter: &mut Filter<impl Host>, proxy: &impl Proxy, answer: Option<&[u8]>) {
    let (host, engine, _) = filter.parts();
    let heard = proxy
        .now()
        .and_then(|now| engine.beside_mut().reported(host, now, answer));
    match heard {
        Ok(Some(heard)) => tell_heard(filter, proxy, heard),
        Ok(None) => {}
        Err(error) => filter.complain(proxy, &error),
    }
}

/// Logs that the server no longer answers, or answers again, if that changed.
fn tell_heard(filter: &mut Filter<impl Host>, proxy: &impl Proxy, heard: bool) {
    let before = filter.parts().1.beside_mut().server_heard.replace(heard);
    if before == Some(heard) {
        return;
    }
    let cluster = headgate_admission::protocol::CLUSTER;
    match (heard, before) {
        (false, _) => {
            let message = format!(
                "headgate: the server of class admission (cluster {cluster:?}) does not answer; \
                 until it does, classAdmission.centralized.fallback decides about classes of calls"
            );
            proxy.log(Level::Warn, &message);
        }
        (true, Some(false)) => {
            proxy.log(
                Level::Info,
                "headgate: the server of class admission answers again",
            );
        }
        (true, _) => {}
    }
}
