//! Detection of hosts that hang: one of several hosts sends no answers while others do.
//!
//! The proxy selects the host after the decision, so requests that hang at one host soon hold all
//! slots. A slow request alone doesn't show that its host hangs. So requests release their slots
//! only if their host *hangs*, which means that all of these conditions hold:
//!
//! - A request of a type *is overtaken* there. It takes longer than the first objective, and than
//!   1.5 times any recent answer of its type.
//! - For at least that time, the host was watched and answered nothing.
//! - Meanwhile another host answered a request of this type.
//!
//! By this definition a single host never hangs, so it never gets more than P requests. If one of
//! several hosts hangs, the requests that released their slots stay at that host, in addition to P,
//! until they end. If the host answers after all, its requests take their slots again, above P if
//! necessary, and the host is trusted for a minute.
//!
//! Hosts are read from the proxy only while there are overtaken requests, and for ten seconds after
//! that. A worker then reads the hosts of overtaken requests and of answers. While a host hangs, it
//! also reads the hosts of all requests that take long. A request without a host, as in a
//! connection pool's queue, keeps its slot. A host that has had none of these requests for ten
//! seconds is forgotten, because it may be gone. Each worker judges by its own requests.

use std::time::Duration;

use headgate_strategies::host::HostError;
use headgate_strategies::request::TypeId;
use headgate_strategies::time::Instant;

use super::Stage;
use crate::decision::{Action, Ticket};
use crate::host::Host;
use crate::requests::{Request, Upstream};

/// The least number of recent answers of a type for a request of it to count as overtaken.
const FEWEST: u32 = 20;
/// The least length of a period of recent answers. The period lasts until it has [`FEWEST`]
/// answers.
const RECENT: Duration = Duration::from_secs(10);
/// The time for which answers are watched after the last overtaken request, and for which a host
/// is suspected after it was last seen.
const WATCH: Duration = Duration::from_secs(10);
/// The time for which a host is trusted after it was wrongly considered to hang.
const TRUST: Duration = Duration::from_secs(60);
/// The largest number of pairs of host and type that are suspected at once. Requests of further
/// pairs keep their slots.
const MOST: usize = 16;

/// The number of answers to requests of a type, and the longest time in the backend among them.
#[derive(Debug, Clone, Copy, Default)]
struct Answers {
    count: u32,
    longest: Duration,
}

/// The recent answers to requests of a type, in two periods.
#[derive(Debug, Clone, Copy, Default)]
struct Recent {
    now: Answers,
    before: Answers,
    began: Instant,
}

impl Recent {
    fn add(&mut self, now: Instant, time: Duration) {
        if self.now.count >= FEWEST && now.since(self.began) >= RECENT {
            self.before = std::mem::take(&mut self.now);
        }
        if self.now.count == 0 {
            self.began = now;
        }
        self.now.count = self.now.count.saturating_add(1);
        self.now.longest = self.now.longest.max(time);
    }

    /// Returns the longest time of recent answers, or `None` if there are too few.
    fn longest(&self) -> Option<Duration> {
        let enough = self.now.count.saturating_add(self.before.count) >= FEWEST;
        enough.then(|| self.now.longest.max(self.before.longest))
    }
}

/// A host that has an overtaken request of type `kind`, or that is trusted.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    host: Upstream,
    kind: TypeId,
    /// The last time at which the host had a request that takes long.
    seen: Instant,
    /// The start of the time in which the host was watched and answered nothing.
    silent: Instant,
    /// The time of the last answer from another host to a request of this type.
    other: Option<Instant>,
    hangs: bool,
    /// The end of the time in which the host is trusted.
    trusted: Option<Instant>,
}

impl Suspect {
    fn is_trusted(&self, now: Instant) -> bool {
        self.trusted.is_some_and(|until| now < until)
    }
}

/// The hosts of a stage on one worker.
#[derive(Debug)]
pub(super) struct Hosts {
    /// The recent answers, by type.
    recent: Vec<Recent>,
    watched_until: Option<Instant>,
    suspects: Vec<Suspect>,
}

impl Hosts {
    pub(super) fn new(types: usize) -> Self {
        Self {
            recent: vec![Recent::default(); types],
            watched_until: None,
            suspects: Vec::with_capacity(MOST),
        }
    }

    /// Records an answer to a request of `kind` that was in the backend for `time`.
    pub(super) fn answered(&mut self, now: Instant, kind: TypeId, time: Duration) {
        if let Some(recent) = self.recent.get_mut(usize::from(kind.0)) {
            recent.add(now, time);
        }
    }

    /// Returns the time in the backend beyond which a request of `kind` is overtaken, or `None`
    /// with too few recent answers. `first` is the first objective of `kind`.
    fn limit(&self, kind: TypeId, first: Duration) -> Option<Duration> {
        let longest = self.recent.get(usize::from(kind.0))?.longest()?;
        Some(first.max(longest.saturating_mul(3) / 2))
    }

    fn is_watching(&self) -> bool {
        self.watched_until.is_some()
    }

    /// Records that `host` has a request that takes long.
    fn seen(&mut self, now: Instant, host: Upstream) {
        for suspect in &mut self.suspects {
            if suspect.host == host {
                suspect.seen = now;
            }
        }
    }

    /// Starts or stops watching answers. `overtaken` is true if any request is overtaken.
    fn watch(&mut self, now: Instant, overtaken: bool) {
        (self.suspects)
            .retain(|suspect| suspect.is_trusted(now) || now.since(suspect.seen) < WATCH);
        if overtaken {
            if !self.is_watching() {
                self.suspects.retain(|suspect| suspect.is_trusted(now));
                for suspect in &mut self.suspects {
                    suspect.silent = now;
                }
            }
            self.watched_until = Some(now + WATCH);
        } else if self.watched_until.is_some_and(|until| now >= until) {
            self.watched_until = None;
        }
    }

    fn any_hangs(&self) -> bool {
        self.suspects.iter().any(|suspect| suspect.hangs)
    }

    fn hangs(&self, host: Upstream) -> bool {
        let mut suspects = self.suspects.iter();
        suspects.any(|suspect| suspect.hangs && suspect.host == host)
    }

    /// Returns whether `host` hangs. The judgement is based on a request of `kind` that `host` has
    /// had since `since`.
    fn judge(
        &mut self,
        now: Instant,
        host: Upstream,
        (kind, since): (TypeId, Instant),
        limit: Duration,
    ) -> bool {
        self.seen(now, host);
        if self.hangs(host) {
            return true;
        }
        if now.since(since) <= limit {
            return false;
        }
        let of = |suspect: &Suspect| suspect.host == host;
        if (self.suspects.iter()).any(|suspect| of(suspect) && suspect.is_trusted(now)) {
            return false;
        }
        let mut suspects = self.suspects.iter_mut();
        if let Some(suspect) = suspects.find(|suspect| of(suspect) && suspect.kind == kind) {
            let from = suspect.silent.max(since);
            suspect.hangs =
                now.since(from) > limit && suspect.other.is_some_and(|other| other > from);
            return suspect.hangs;
        }
        if self.suspects.len() < MOST {
            self.suspects.push(Suspect {
                host,
                kind,
                seen: now,
                silent: now,
                other: None,
                hangs: false,
                trusted: None,
            });
        }
        false
    }

    /// Records an answer of `host` to a request of `kind`. Returns whether `host` was considered to
    /// hang.
    fn answered_by(&mut self, now: Instant, host: Upstream, kind: TypeId) -> bool {
        let hung = self.hangs(host);
        for suspect in &mut self.suspects {
            if suspect.host == host {
                suspect.silent = now;
                if hung {
                    suspect.hangs = false;
                    suspect.trusted = Some(now + TRUST);
                }
            } else if suspect.kind == kind {
                suspect.other = Some(now);
            }
        }
        (self.suspects).retain(|suspect| suspect.host != host || suspect.is_trusted(now));
        hung
    }
}

impl Stage {
    /// Returns the time in the backend beyond which a request of `kind` is overtaken, or `None`
    /// with too few recent answers.
    fn overtaken_after(&self, kind: TypeId) -> Option<Duration> {
        let first = self.service_times.objectives(kind).first()?;
        self.hosts.limit(kind, first.response_time)
    }

    /// Watches hosts while a request is overtaken. Adds to `suspects` each request, with its
    /// stream, for which the caller must call [`Stage::at_host`].
    pub(crate) fn find_suspects(&mut self, now: Instant, suspects: &mut Vec<(Ticket, u32)>) {
        let is_longer = |request: &Request, time: Option<Duration>| {
            let since = request.unanswered_since();
            since.is_some_and(|since| time.is_some_and(|time| now.since(since) > time))
        };
        let overtaken = self.holds()
            && (self.requests.iter())
                .any(|request| is_longer(request, self.overtaken_after(request.attributes.kind)));
        self.hosts.watch(now, overtaken);
        if !self.hosts.is_watching() {
            return;
        }
        let any_hangs = self.hosts.any_hangs();
        for (ticket, request) in self.requests.tickets() {
            let kind = request.attributes.kind;
            let time = match any_hangs {
                true => self.service_times.mean(kind),
                false => self.overtaken_after(kind),
            };
            if let Some((_, Some(host))) = request.freed {
                self.hosts.seen(now, host);
            } else if is_longer(request, time) {
                suspects.push((ticket, request.stream));
            }
        }
    }

    /// Whether the caller must call [`Stage::answered_by`] for answers.
    pub fn watches_hosts(&self) -> bool {
        self.hosts.is_watching()
    }

    /// Releases the slot of a request whose current host is `upstream`, if `upstream` hangs.
    ///
    /// # Errors
    /// [`HostError`]; the audits then free the slot within a few seconds.
    pub fn at_host(
        &mut self,
        host: &impl Host,
        now: Instant,
        ticket: Ticket,
        upstream: Upstream,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let Some(request) = self.requests.of(ticket) else {
            return Ok(());
        };
        let kind = request.attributes.kind;
        let limit = self.overtaken_after(kind);
        let (None, Some(since), Some(limit)) = (request.freed, request.unanswered_since(), limit)
        else {
            return Ok(());
        };
        if !(self.holds() && self.hosts.judge(now, upstream, (kind, since), limit)) {
            return Ok(());
        }
        let tokens = request.tokens;
        if let Some(request) = self.requests.of_mut(ticket) {
            request.freed = Some((now, Some(upstream)));
        }
        let released = self.ledger.release(host, tokens);
        self.dispatch(host, now, actions).and(released)
    }

    /// Records that `upstream` answered a request. If it was considered to hang, its requests take
    /// their slots again.
    ///
    /// # Errors
    /// [`HostError`]; a request for which no slot can be booked holds no slot.
    pub fn answered_by(
        &mut self,
        host: &impl Host,
        now: Instant,
        ticket: Ticket,
        upstream: Upstream,
    ) -> Result<(), HostError> {
        let Some(request) = self.requests.of(ticket) else {
            return Ok(());
        };
        if !(self.hosts).answered_by(now, upstream, request.attributes.kind) {
            return Ok(());
        }
        for request in self.requests.iter_mut() {
            if request.freed.is_some_and(|(_, at)| at == Some(upstream)) {
                self.ledger.acquire_over_limit(host, request.tokens)?;
                request.freed = None;
            }
        }
        Ok(())
    }
}
