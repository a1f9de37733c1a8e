//! The way to one backend: the rate limiter of its workflows, if it has any, and then its stage.
//!
//! ```text
//! request ─► limiter (Wisp §4.1, §4.3) ─► stage (strategy, queue, slots) ─► backend
//! ```
//!
//! Without workflows this is the stage and nothing else.

use crate::config::StageConfig;
use crate::host::{Host, HostError};
use crate::refusal::{Origin, Refusal};
use crate::request::{Attributes, TypeId};
use crate::stage::{Arrival, Event, Outcome, Stage, Ticket};
use crate::time::Instant;
use crate::workers::{Changes, Membership};
use crate::workflows::{Entry, Incoming, Passage, Release, Workflows};

/// A request's place, to be given to [`Entrance::finish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the stage; it has no workflow.
    Stage(Ticket),
    /// In the limiter or the stage.
    Workflow(Entry),
}

/// What becomes of a request at its arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Send it to the backend now.
    Forward(Place),
    /// Hold it until an [`Event`] names its stream.
    Hold(Place),
    /// Answer it now.
    Refuse(Refusal),
}

/// See the module.
#[derive(Debug)]
pub struct Entrance {
    /// The stage.
    pub stage: Stage,
    /// The limiter.
    pub workflows: Option<Workflows>,
    seed: u64,
    releases: Vec<Release>,
}

impl Entrance {
    /// The entrance of `config` on the worker that `membership` names. `seed` makes its random decisions
    /// repeatable.
    ///
    /// # Errors
    /// [`HostError`] when the host refuses a metric.
    pub fn new(
        config: StageConfig,
        membership: &Membership,
        seed: u64,
        now: Instant,
        host: &impl Host,
    ) -> Result<Self, HostError> {
        Ok(Self {
            workflows: Workflows::new(&config, membership, seed, now, host)?,
            stage: Stage::new(config, membership, seed, host)?,
            seed,
            releases: Vec::new(),
        })
    }

    /// Requests of this worker that wait or run.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.workflows.as_ref().map_or(0, Workflows::held) + self.stage.pending()
    }

    /// Whether ticks should come soon.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.stage.is_busy() || self.workflows.as_ref().is_some_and(Workflows::is_busy)
    }

    /// The stage's promise to a request, once it is there.
    #[must_use]
    pub fn ticket(&self, place: Place) -> Option<Ticket> {
        match place {
            Place::Stage(ticket) => Some(ticket),
            Place::Workflow(entry) => self.workflows.as_ref()?.ticket(entry),
        }
    }

    /// The caller's name for a request; `None` once it has ended.
    #[must_use]
    pub fn stream(&self, place: Place) -> Option<u32> {
        match place {
            Place::Stage(ticket) => self.stage.stream(ticket),
            Place::Workflow(entry) => self.workflows.as_ref()?.stream(entry),
        }
    }

    /// A request arrives. `origin` is for where there are workflows.
    ///
    /// # Errors
    /// [`HostError`]; the caller lets the request through, unmanaged.
    pub fn arrive(
        &mut self,
        host: &impl Host,
        now: Instant,
        stream: u32,
        attributes: &Attributes,
        origin: Origin,
        events: &mut Vec<Event>,
    ) -> Result<Admission, HostError> {
        let Some(workflows) = self.workflows.as_mut().filter(|w| !w.is_retired()) else {
            return Ok(
                match self.stage.arrive(host, now, stream, attributes, events)? {
                    Arrival::Forward(ticket) => Admission::Forward(Place::Stage(ticket)),
                    Arrival::Hold(ticket) => Admission::Hold(Place::Stage(ticket)),
                    Arrival::Refuse(refusal) => Admission::Refuse(refusal),
                },
            );
        };
        let request = Incoming {
            stream,
            origin,
            attributes: *attributes,
        };
        match workflows.arrive(host, now, &request) {
            Passage::Hold(entry) => Ok(Admission::Hold(Place::Workflow(entry))),
            Passage::Refuse(cause, retry_after) => {
                let refusal = self.stage.refuse_before(attributes, cause, retry_after);
                Ok(Admission::Refuse(refusal.to(origin)))
            }
            Passage::Forward(entry) => {
                let admission = self.enter(host, now, stream, entry, events)?;
                Ok(match admission {
                    Admission::Refuse(refusal) => Admission::Refuse(refusal.to(origin)),
                    other => other,
                })
            }
        }
    }

    /// A request comes from the limiter to the stage.
    fn enter(
        &mut self,
        host: &impl Host,
        now: Instant,
        stream: u32,
        entry: Entry,
        events: &mut Vec<Event>,
    ) -> Result<Admission, HostError> {
        let Some(workflows) = &mut self.workflows else {
            return Ok(Admission::Hold(Place::Workflow(entry)));
        };
        let attributes = workflows
            .attributes(entry)
            .unwrap_or(Attributes::of(TypeId(0)));
        let before = events.len();
        let arrival = self.stage.arrive(host, now, stream, &attributes, events);
        let place = Place::Workflow(entry);
        let admission = match arrival {
            Ok(Arrival::Forward(ticket)) => {
                workflows.admitted(entry, ticket);
                workflows.started(now, stream);
                Ok(Admission::Forward(place))
            }
            Ok(Arrival::Hold(ticket)) => {
                workflows.admitted(entry, ticket);
                Ok(Admission::Hold(place))
            }
            Ok(Arrival::Refuse(refusal)) => {
                workflows.left(now, entry);
                Ok(Admission::Refuse(refusal))
            }
            Err(error) => {
                workflows.left(now, entry);
                Err(error)
            }
        };
        self.note(now, events, before);
        admission
    }

    /// Lets the stage do something, and tells the limiter what came of it for requests that waited.
    fn in_stage<T>(
        &mut self,
        now: Instant,
        events: &mut Vec<Event>,
        f: impl FnOnce(&mut Stage, &mut Vec<Event>) -> T,
    ) -> T {
        let before = events.len();
        let done = f(&mut self.stage, events);
        self.note(now, events, before);
        done
    }

    /// Tells the limiter what the stage did with requests that waited in it.
    fn note(&mut self, now: Instant, events: &mut [Event], from: usize) {
        let Some(workflows) = &mut self.workflows else {
            return;
        };
        for event in events.iter_mut().skip(from) {
            match event {
                Event::Resume { stream } => workflows.started(now, *stream),
                Event::Expire { stream, refusal } => {
                    if let Some(origin) = workflows.expired(now, *stream) {
                        *refusal = refusal.to(origin);
                    }
                }
            }
        }
    }

    /// A request ended. Safe to call twice.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn finish(
        &mut self,
        host: &impl Host,
        now: Instant,
        place: Place,
        outcome: Outcome,
        events: &mut Vec<Event>,
    ) -> Result<(), HostError> {
        let ticket = self.ticket(place);
        if let (Place::Workflow(entry), Some(workflows)) = (place, &mut self.workflows) {
            match outcome {
                Outcome::Completed | Outcome::Unsampled if ticket.is_some() => {
                    let dequeued = ticket.and_then(|ticket| self.stage.dequeued(ticket));
                    workflows.served(host, now, entry, dequeued);
                }
                _ => workflows.left(now, entry),
            }
        }
        let Some(ticket) = ticket else {
            return Ok(());
        };
        self.in_stage(now, events, |stage, events| {
            stage.finish(host, now, ticket, outcome, events)
        })
    }

    /// Another worker freed a slot for a request that waits here.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn woken(
        &mut self,
        host: &impl Host,
        now: Instant,
        events: &mut Vec<Event>,
    ) -> Result<(), HostError> {
        self.in_stage(now, events, |stage, events| stage.woken(host, now, events))
    }

    /// Housekeeping of both.
    ///
    /// # Errors
    /// [`HostError`]; the next tick continues.
    pub fn tick(
        &mut self,
        host: &impl Host,
        now: Instant,
        membership: &Membership,
        changes: &Changes,
        events: &mut Vec<Event>,
    ) -> Result<(), HostError> {
        let ticked = self.in_stage(now, events, |stage, events| {
            stage.tick(host, now, membership, changes, events)
        });
        let Some(workflows) = &mut self.workflows else {
            return ticked;
        };
        let mut releases = std::mem::take(&mut self.releases);
        let adapted = workflows.tick(host, now, membership, changes, &mut releases);
        for release in releases.drain(..) {
            self.release(host, now, release, events);
        }
        self.releases = releases;
        // Its last request knew its slot by it.
        if (self.workflows.as_ref()).is_some_and(|w| w.is_retired() && w.is_empty()) {
            self.workflows = None;
        }
        ticked.and(adapted)
    }

    fn release(
        &mut self,
        host: &impl Host,
        now: Instant,
        release: Release,
        events: &mut Vec<Event>,
    ) {
        match release {
            Release::Admit { entry, stream } => {
                let origin = self.workflows.as_ref().and_then(|w| w.origin(entry));
                match self.enter(host, now, stream, entry, events) {
                    Ok(Admission::Hold(_)) => {}
                    Ok(Admission::Refuse(refusal)) => {
                        let refusal = origin.map_or(refusal, |origin| refusal.to(origin));
                        events.push(Event::Expire { stream, refusal });
                    }
                    // Where the host fails it goes on, unmanaged.
                    Ok(Admission::Forward(_)) | Err(_) => events.push(Event::Resume { stream }),
                }
            }
            Release::Refuse {
                stream,
                origin,
                attributes,
                cause,
                retry_after,
            } => {
                let refusal = self.stage.refuse_before(&attributes, cause, retry_after);
                events.push(Event::Expire {
                    stream,
                    refusal: refusal.to(origin),
                });
            }
        }
    }

    /// Takes a new version of its policy over.
    ///
    /// # Errors
    /// As [`Stage::reconfigure`].
    pub fn reconfigure(
        &mut self,
        host: &impl Host,
        now: Instant,
        config: StageConfig,
        membership: &Membership,
        events: &mut Vec<Event>,
    ) -> Result<(), HostError> {
        let old = self.stage.config().clone();
        let changed = self.in_stage(now, events, |stage, events| {
            stage.reconfigure(host, now, config, events)
        });
        let revived = self.workflows.as_ref().is_some_and(Workflows::is_retired);
        if self.stage.config() == &old && !revived {
            return changed;
        }
        let config = self.stage.config().clone();
        let mut releases = std::mem::take(&mut self.releases);
        let kept = match (&mut self.workflows, &config.workflows) {
            (Some(workflows), Some(_)) => {
                workflows.reconfigure(&old, &config, now, host, &mut releases)
            }
            (Some(workflows), None) => {
                workflows.retire(now, &mut releases);
                Ok(())
            }
            (none, Some(_)) => Workflows::new(&config, membership, self.seed, now, host)
                .map(|workflows| *none = workflows),
            (None, None) => Ok(()),
        };
        for release in releases.drain(..) {
            self.release(host, now, release, events);
        }
        self.releases = releases;
        changed.and(kept)
    }

    /// The policy is gone: lets everybody through who waits.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn retire(
        &mut self,
        host: &impl Host,
        now: Instant,
        events: &mut Vec<Event>,
    ) -> Result<(), HostError> {
        let retired = self.in_stage(now, events, |stage, events| stage.retire(host, now, events));
        let mut releases = std::mem::take(&mut self.releases);
        if let Some(workflows) = &mut self.workflows {
            workflows.retire(now, &mut releases);
        }
        for release in releases.drain(..) {
            self.release(host, now, release, events);
        }
        self.releases = releases;
        retired
    }

    /// Shares what is pending with the host now: the worker is about to end.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn flush(&mut self, host: &impl Host, now: Instant) -> Result<(), HostError> {
        if let Some(workflows) = &mut self.workflows {
            workflows.flush(host, now)?;
        }
        self.stage.flush(host, now)
    }
}
