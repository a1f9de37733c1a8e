//! What [`Workflows`] does between requests: it lets those go whom the limiter held, exchanges what was measured
//! with the other workers, leads if it is its turn, and takes changes of its configuration over.

use std::time::Duration;

use super::lead::{Lead, Tools};
use super::limiter::Fate;
use super::process::{Release, Workflows};
use super::published::Published;
use super::stats::Count;
use super::{OTHER, WorkflowId};
use crate::config::{Mode, StageConfig, WorkflowsConfig};
use crate::engine::SLOW_TICK;
use crate::host::{Expected, Host, HostError};
use crate::refusal::Reason;
use crate::requests::Requests;
use crate::time::Instant;
use crate::workers::{Changes, Membership, WorkerId};

const ATTEMPTS: u32 = 4;

/// Stores a blob whose reader only wants the latest.
fn replace(host: &impl Host, key: &str, bytes: &[u8]) -> Result<(), HostError> {
    for _ in 0..ATTEMPTS {
        let expected = Expected::from(host.load(key)?.map(|(_, version)| version));
        match host.store(key, bytes, expected) {
            Err(HostError::Conflict) => {}
            stored => return stored,
        }
    }
    Err(HostError::Conflict)
}

fn interval(config: &WorkflowsConfig) -> Duration {
    Duration::from_micros(config.interval_us)
}

impl Workflows {
    fn mailbox(&self, worker: WorkerId) -> String {
        format!("{}/mailbox/{worker}", self.key)
    }

    /// Housekeeping: releases whom the limiter held, exchanges what was measured with the other workers
    /// and, on the worker that leads, runs Algorithm 1.
    ///
    /// # Errors
    /// [`HostError`]; the next tick continues.
    pub(crate) fn tick(
        &mut self,
        host: &impl Host,
        now: Instant,
        membership: &Membership,
        changes: &Changes,
        requests: &mut Requests,
        releases: &mut Vec<Release>,
    ) -> Result<(), HostError> {
        self.worker = membership.id();
        if self.retired {
            if std::mem::take(&mut self.shown) {
                self.stats.withdraw(host)?;
            }
            return self.stats.flush(host);
        }
        let mut done = Ok(());
        for &dead in &changes.dead {
            let mailbox = self.mailbox(dead);
            done = done.and(self.tally.collect(host, &mailbox));
        }
        done = done.and(self.learn_names(host));
        if now.since(self.exchanged) >= interval(&self.config) {
            self.exchanged = now;
            self.account(now);
            let mailbox = self.mailbox(self.worker);
            done = done.and(self.tally.deposit(host, &mailbox));
            done = done.and(self.lead(host, now, membership));
        }
        done = done.and(self.learn_rates(host));
        self.release(host, now, requests, releases);
        done.and(self.stats.flush(host))
    }

    /// Takes over what other workers named.
    pub(super) fn learn_names(&mut self, host: &impl Host) -> Result<(), HostError> {
        self.names.sync(host)?;
        self.services.sync(host)?;
        if self.named != Some(self.names.revision()) {
            self.stats.rename(host, &self.names)?;
            self.find_deadlines();
            self.named = Some(self.names.revision());
        }
        if self.served != Some(self.services.revision()) {
            self.stats.name_services(host, &self.services)?;
            self.served = Some(self.services.revision());
        }
        Ok(())
    }

    /// Deadlines by id.
    fn find_deadlines(&mut self) {
        let of = |name: &[u8]| {
            let name = std::str::from_utf8(name).ok()?;
            let deadline = self.config.workflows.get(name)?.deadline_us?;
            Some(Duration::from_micros(deadline))
        };
        self.deadlines.clear();
        self.deadlines.push(of(super::OTHER_NAME.as_bytes()));
        for (id, name) in self.names.iter() {
            let at = usize::from(id);
            self.deadlines.resize(at.max(self.deadlines.len()), None);
            self.deadlines.insert(at, of(name));
        }
    }

    /// Gives ids to the workflows that are configured, before others come.
    pub(super) fn reserve(&mut self, host: &impl Host, now: Instant) {
        for name in self.config.workflows.keys() {
            if name != super::OTHER_NAME {
                self.names.id(host, now, name.as_bytes());
            }
        }
        self.named = None;
    }

    /// Runs Algorithm 1 if no worker with a lower number lives.
    fn lead(
        &mut self,
        host: &impl Host,
        now: Instant,
        membership: &Membership,
    ) -> Result<(), HostError> {
        let own = membership.id();
        if membership.others().iter().any(|&other| other < own) {
            self.lead = None;
            return Ok(());
        }
        // Another worker may have led until now.
        self.learn_rates(host)?;
        if self.lead.is_none() {
            let state = host.load(&format!("{}/state", self.key))?;
            let state = state.as_ref().map(|(bytes, _)| bytes.as_slice());
            self.lead = Some(Lead::new(&self.config, state, &self.published));
        }
        let key = &self.key;
        let Some(lead) = &mut self.lead else {
            return Ok(());
        };
        let others = membership.others();
        let collected = lead.collect(host, own, others, |id| format!("{key}/mailbox/{id}"));
        if now.since(self.published.at) < interval(&self.config) / 2 {
            return collected;
        }
        let mut tools = Tools {
            config: &self.config,
            slots: self.slots,
            names: &mut self.names,
            services: &self.services,
            limiter: &mut self.limiter,
            stats: &mut self.stats,
            published: &self.published,
        };
        let (published, shown) = lead.run(host, now, &mut tools);
        self.shown = true;
        let mut bytes = Vec::new();
        published.encode(&mut bytes);
        let told = replace(host, &format!("{key}/rates"), &bytes);
        bytes.clear();
        lead.state(&mut bytes);
        let kept = replace(host, &format!("{key}/state"), &bytes);
        // Others look when this moves; nobody misses a rate that could not be stored.
        let announced = host.add(self.sequence, 1);
        self.apply(published);
        collected.and(shown).and(told).and(kept).and(announced)
    }

    /// Takes over what the leader published, if it did.
    pub(super) fn learn_rates(&mut self, host: &impl Host) -> Result<(), HostError> {
        let sequence = host.read(self.sequence)?;
        if self.seen == Some(sequence) {
            return Ok(());
        }
        let loaded = host.load(&format!("{}/rates", self.key))?;
        self.seen = Some(sequence);
        let published = loaded.and_then(|(bytes, _)| Published::decode(&bytes));
        if let Some(published) = published.filter(|p| p.at > self.published.at) {
            self.apply(published);
        }
        Ok(())
    }

    fn apply(&mut self, published: Published) {
        for row in &self.published.rows {
            if published.row(row.workflow).is_none() {
                self.limiter.set(row.workflow, None);
            }
        }
        for row in &published.rows {
            self.limiter
                .set(row.workflow, published.level(row.workflow));
        }
        self.published = published;
    }

    /// Lets those go whose turn it is.
    fn release(
        &mut self,
        host: &impl Host,
        now: Instant,
        requests: &mut Requests,
        releases: &mut Vec<Release>,
    ) {
        let (stats, tally) = (&mut self.stats, &mut self.tally);
        self.limiter.release(now, |ticket, fate| {
            let Some((request, part)) = requests.both_mut(ticket) else {
                return;
            };
            let (stream, origin) = (request.stream, part.origin);
            let workflow = origin.workflow;
            match fate {
                Fate::Pass(waited) => {
                    part.pass(request, now);
                    stats.count(workflow, Count::Admitted);
                    // A distribution that could not be written lacks a value.
                    stats.waited(host, workflow, waited).unwrap_or(());
                    tally.row(workflow).measured.admitted += 1;
                    releases.push(Release::Admit { ticket, stream });
                }
                Fate::Late(retry_after) => {
                    let (reason, count) = match part.deadline {
                        Some(_) => (Reason::Deadline, Count::Deadline),
                        None => (Reason::RateLimited, Count::RateLimited),
                    };
                    stats.count(workflow, count);
                    stats.count(workflow, Count::RejectedEnforced);
                    let attributes = request.attributes;
                    requests.take(ticket);
                    releases.push(Release::Refuse {
                        stream,
                        origin,
                        attributes,
                        reason,
                        retry_after,
                    });
                }
            }
        });
    }

    /// Nobody is held any more.
    fn release_all(&mut self, now: Instant, requests: &mut Requests, releases: &mut Vec<Release>) {
        let tally = &mut self.tally;
        self.limiter.clear(now, |ticket, _| {
            if let Some((request, part)) = requests.both_mut(ticket) {
                part.pass(request, now);
                tally.row(part.origin.workflow).measured.admitted += 1;
                let stream = request.stream;
                releases.push(Release::Admit { ticket, stream });
            }
        });
    }

    /// Takes a new version of the stage's configuration over: what is measured and held stays.
    ///
    /// # Errors
    /// [`HostError`]; the next tick continues.
    pub(crate) fn reconfigure(
        &mut self,
        new: &StageConfig,
        now: Instant,
        host: &impl Host,
        requests: &mut Requests,
        releases: &mut Vec<Release>,
    ) -> Result<(), HostError> {
        let Some(config) = &new.workflows else {
            self.retire(now, requests, releases);
            return Ok(());
        };
        self.slots = f64::from(new.parallelism);
        self.longest_wait = Duration::from_micros(new.queue.timeout_us);
        let enforced = new.mode == Mode::Enforce;
        if self.enforced && !enforced {
            self.release_all(now, requests, releases);
        }
        self.enforced = enforced;
        let back = std::mem::take(&mut self.retired);
        if &self.config == config && !back {
            return Ok(());
        }
        self.config.clone_from(config);
        self.names.set_cap(config.max_workflows);
        self.names.sync(host)?;
        self.reserve(host, now);
        if let Some(lead) = &mut self.lead {
            lead.reconfigure(config);
        }
        // Levels of before: the leader's next run sets those of now.
        for row in &self.published.rows {
            self.limiter
                .set(row.workflow, self.published.level(row.workflow));
        }
        self.learn_names(host)
    }

    /// The policy is gone, or has no workflows any more: nobody is held or limited from now on.
    pub(crate) fn retire(
        &mut self,
        now: Instant,
        requests: &mut Requests,
        releases: &mut Vec<Release>,
    ) {
        self.release_all(now, requests, releases);
        self.retired = true;
        self.lead = None;
    }

    /// Whether its policy is gone, or has no workflows any more.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.retired
    }

    /// Whether ticks should come soon: the limiter holds somebody, or intervals are short and there are
    /// requests.
    #[must_use]
    pub(crate) fn is_busy(&self, requests: &Requests) -> bool {
        let short = interval(&self.config) < SLOW_TICK;
        self.limiter.held() > 0 || (short && requests.len() > 0)
    }

    /// Shares what was measured with the other workers now: this one is about to end.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn flush(&mut self, host: &impl Host, now: Instant) -> Result<(), HostError> {
        self.account(now);
        let mailbox = self.mailbox(self.worker);
        let told = self.tally.deposit(host, &mailbox);
        told.and(self.stats.flush(host))
    }

    /// The rate in force, requests/s; infinite where none is.
    #[must_use]
    pub fn rate(&self, workflow: WorkflowId) -> f64 {
        let level = self.limiter.level(workflow);
        level.map_or(f64::INFINITY, |level| level.rate)
    }

    /// Name of a workflow; `None` for [`OTHER`] and what nobody knows.
    #[must_use]
    pub fn name(&self, workflow: WorkflowId) -> Option<&[u8]> {
        (workflow != OTHER).then(|| self.names.name(workflow.0))?
    }
}
