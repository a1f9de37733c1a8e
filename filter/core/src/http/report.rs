//! Reports to the server of class admission, and its answers: beside all streams, so that none
//! waits for it.

use crate::engine::Callout;
use crate::host::Host;

use super::{Filter, Level, Proxy};

impl<H: Host> Filter<H> {
    /// What the host is to send now, if anything; asked at each tick. Its answer goes to
    /// [`Filter::reported`], also where there is none.
    pub fn report(&mut self, proxy: &impl Proxy) -> Option<Callout> {
        let due = proxy
            .now()
            .and_then(|now| self.engine.report(&self.host, now));
        due.unwrap_or_else(|error| {
            self.complain(proxy, &error);
            None
        })
    }

    /// The answer to what was sent: its body if it was 200, `None` if it was not, or none came.
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
                    "headgate: the server of class admission (cluster {cluster:?}) does not answer; classes of calls \
                     are up to classAdmission.centralized.fallback while it lasts"
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
