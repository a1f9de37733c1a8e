//! Reports to the server of class admission, and its answers: beside all streams, so that none
//! waits for it.

use crate::engine::Callout;
use crate::host::Host;

use super::{Filter, Level, Proxy};

impl<H: Host> Filter<H> {
    /// Returns the request that the host must send now, if any. Call it at each tick. The answer,
    /// or its absence, goes to [`Filter::reported`].
    pub fn report(&mut self, proxy: &impl Proxy) -> Option<Callout> {
        let due = proxy
            .now()
            .and_then(|now| self.engine.report(&self.host, now));
        due.unwrap_or_else(|error| {
            self.complain(proxy, &error);
            None
        })
    }

    /// Handles the answer to a report: its body if the status was 200, else `None`, also without an
    /// answer.
    pub fn reported(&mut self, proxy: &impl Proxy, answer: Option<&[u8]>) {
        let heard = proxy
            .now()
            .and_then(|now| self.engine.reported(&self.host, now, answer));
        match heard {
            Ok(Some(heard)) => self.tell_heard(proxy, heard),
            Ok(None) => {}
            Err(error) => self.complain(proxy, &error),
        }
    }

    /// Logs that the server fell silent, or is heard again.
    fn tell_heard(&mut self, proxy: &impl Proxy, heard: bool) {
        if self.server_heard == Some(heard) {
            return;
        }
        let before = self.server_heard.replace(heard);
        let cluster = crate::class_admission::protocol::CLUSTER;
        match (heard, before) {
            (false, _) => {
                let message = format!(
                    "headgate: the server of class admission (cluster {cluster:?}) does not \
                     answer; classes of calls are up to classAdmission.centralized.fallback while \
                     it lasts"
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
}
