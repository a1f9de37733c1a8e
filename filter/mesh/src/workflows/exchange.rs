//! The work of [`Workflows`] between requests. It releases held requests, exchanges measurements
//! with the other workers, runs Algorithm 1 when it is due, and applies changes of the
//! configuration.

use std::time::Duration;

use headgate_core::beside::Release;
use headgate_core::config::{Mode, StageConfig, WorkflowsConfig};
use headgate_core::engine::SLOW_TICK;
use headgate_core::host::Host;
use headgate_core::requests::Requests;
use headgate_core::workers::WorkerId;
use headgate_strategies::host::HostError;
use headgate_strategies::reason::Reason;
use headgate_strategies::time::Instant;

use super::adaptation::Adaptation;
use super::limiter::Fate;
use super::process::{Workflows, hash_of_classes, takes_turns_by_tokens};
use super::record::{Record, Run};
use super::stats::{Count, ProcessCount};
use super::{OTHER, WorkflowId};

fn interval(config: &WorkflowsConfig) -> Duration {
    Duration::from_micros(config.interval_us)
}

impl Workflows {
    /// Does the periodic work on `worker`. It releases held requests, exchanges measurements with
    /// the other workers, and runs Algorithm 1 if it is due. `slots` is P, the number of slots. It
    /// is infinite while P is unlimited.
    ///
    /// # Errors
    /// [`HostError`]. The next tick then continues.
    pub(crate) fn tick(
        &mut self,
        host: &impl Host,
        now: Instant,
        (worker, slots): (WorkerId, f64),
        requests: &mut Requests,
        releases: &mut Vec<Release>,
    ) -> Result<(), HostError> {
        self.worker = worker;
        if self.retired {
            if std::mem::take(&mut self.shown) {
                self.stats.withdraw(host)?;
            }
            return self.stats.flush(host);
        }
        let mut done = self.learn_names(host);
        if now.since(self.exchanged) >= interval(&self.config) {
            self.exchanged = now;
            self.recount(now, requests);
            // The id of a workflow must not get another name while a request counts for the id,
            // such as a stream that lasts for days.
            for workflow in self.parts.workflows(requests) {
                self.measured.workflow(workflow).touch();
            }
            done = done.and(self.exchange(host, now, Some(slots)));
        }
        done = done.and(self.learn_rates(host));
        self.release(host, now, requests, releases);
        done.and(self.stats.flush(host))
    }

    /// Updates the copies of the directories, and the state that depends on names.
    pub(super) fn learn_names(&mut self, host: &impl Host) -> Result<(), HostError> {
        self.names.sync(host)?;
        self.services.sync(host)?;
        if !self.reserved {
            self.reserve(host);
        }
        if self.named != Some(self.names.revision()) {
            let config = &self.config;
            let configured = |name: &[u8]| {
                std::str::from_utf8(name).is_ok_and(|name| config.workflows.contains_key(name))
            };
            self.stats.rename(host, &self.names, configured)?;
            self.find_deadlines();
            self.named = Some(self.names.revision());
        }
        if self.served != Some(self.services.revision()) {
            self.stats.name_services(host, &self.services)?;
            self.served = Some(self.services.revision());
        }
        Ok(())
    }

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

    /// Gives each configured workflow an id, even if other names have filled the directory. On a
    /// host error, the next tick tries again.
    fn reserve(&mut self, host: &impl Host) {
        let names = self.config.workflows.keys().map(String::as_bytes);
        let names = names.filter(|name| *name != super::OTHER_NAME.as_bytes());
        self.reserved = self.names.reserve(host, &names).is_ok();
        self.named = None;
    }

    /// Adds this worker's measurements to the record. The first worker after the end of the
    /// interval runs Algorithm 1 with this number of `slots`. If `slots` is `None`, this worker
    /// leaves the run to others.
    fn exchange(
        &mut self,
        host: &impl Host,
        now: Instant,
        slots: Option<f64>,
    ) -> Result<(), HostError> {
        self.account(now);
        let (measured, adaptation) = (&self.measured, &mut self.adaptation);
        let limiter = &mut self.limiter;
        let run = Run {
            now,
            config: &self.config,
            slots: slots.unwrap_or(f64::INFINITY),
            names: &self.names,
            services: &self.services,
        };
        let (record, found) = self.record.change(host, |record: &mut Record| {
            record.measured.add(measured);
            let due = slots.is_some() && now.since(record.published.at) >= interval(run.config);
            let found = due.then(|| record.run(host, adaptation, limiter, &run));
            (due || !measured.is_empty(), found)
        })?;
        self.measured.clear();
        let Some(found) = found else {
            return Ok(());
        };
        self.shown = true;
        self.published = record.published;
        let mut done = self.record.announce(host);
        self.stats
            .count_process(ProcessCount::Expired, found.expired);
        for (workflow, waiting) in &found.workflows {
            let shown = self.stats.found(host, workflow, *waiting);
            done = done.and(shown);
        }
        if !found.idle.is_empty() {
            done = done.and(self.names.free(host, &found.idle));
        }
        if !found.idle_services.is_empty() {
            done = done.and(self.services.free(host, &found.idle_services));
        }
        done
    }

    /// Applies the results that another worker published, if they are newer.
    pub(super) fn learn_rates(&mut self, host: &impl Host) -> Result<(), HostError> {
        if let Some(Record { published, .. }) = self.record.news(host)?
            && published.at > self.published.at
        {
            self.published = published;
        }
        Ok(())
    }

    /// Releases the held requests whose numbers are reached, and refuses the held requests that
    /// would wait too long.
    fn release(
        &mut self,
        host: &impl Host,
        now: Instant,
        requests: &mut Requests,
        releases: &mut Vec<Release>,
    ) {
        let (stats, parts) = (&mut self.stats, &mut self.parts);
        let published = &self.published;
        let level = |workflow| published.level(workflow);
        self.limiter.release(now, level, |ticket, fate| {
            let Some((request, part)) = parts.both_mut(requests, ticket) else {
                return;
            };
            let workflow = WorkflowId(request.origin.flow);
            match fate {
                Fate::Pass(waited) => {
                    part.pass(request, now);
                    stats.count(workflow, Count::Admitted);
                    // A host error is ignored, because only a value in the histogram is then
                    // missing.
                    stats.waited(host, workflow, waited).unwrap_or(());
                    releases.push(Release::Admit(ticket));
                }
                Fate::Late(retry_after) => {
                    let (reason, count) = match part.hasty {
                        true => (Reason::Deadline, Count::Deadline),
                        false => (Reason::RateLimited, Count::RateLimited),
                    };
                    stats.count(workflow, count);
                    stats.count(workflow, Count::RejectedEnforced);
                    releases.push(Release::Refuse(ticket, reason, retry_after));
                }
            }
        });
    }

    /// Releases all held requests.
    fn release_all(&mut self, now: Instant, requests: &mut Requests, releases: &mut Vec<Release>) {
        let parts = &mut self.parts;
        self.limiter.clear(now, |ticket, _| {
            if let Some((request, part)) = parts.both_mut(requests, ticket) {
                part.pass(request, now);
                releases.push(Release::Admit(ticket));
            }
        });
    }

    /// Applies a new version of the stage's configuration. Measurements and held requests stay.
    ///
    /// # Errors
    /// [`HostError`]. The next tick then continues.
    pub(crate) fn reconfigure(
        &mut self,
        new: &StageConfig,
        now: Instant,
        host: &impl Host,
        requests: &mut Requests,
        releases: &mut Vec<Release>,
    ) -> Result<(), HostError> {
        self.classes = hash_of_classes(new);
        let Some(config) = &new.workflows else {
            self.retire(now, requests, releases);
            return Ok(());
        };
        self.longest_wait = Duration::from_micros(new.queue.timeout_us);
        let enforced = new.mode == Mode::Enforce;
        if self.enforced && !enforced {
            self.release_all(now, requests, releases);
        }
        self.enforced = enforced;
        self.adaptation = Adaptation::new(config, !takes_turns_by_tokens(new));
        let back = std::mem::take(&mut self.retired);
        if &self.config == config && !back {
            return Ok(());
        }
        self.config.clone_from(config);
        self.names.set_cap(config.max_workflows);
        // If a host call fails now, the next tick reads the new settings of names.
        self.reserved = false;
        self.learn_names(host)
    }

    /// Releases all held requests and limits no others, because the policy was removed or no longer
    /// has workflows.
    pub(crate) fn retire(
        &mut self,
        now: Instant,
        requests: &mut Requests,
        releases: &mut Vec<Release>,
    ) {
        self.release_all(now, requests, releases);
        self.retired = true;
    }

    /// Whether the policy was removed or no longer has workflows.
    pub fn is_retired(&self) -> bool {
        self.retired
    }

    /// Whether the workflows are retired, and no remaining request has a workflow.
    pub(crate) fn is_over(&self, requests: &Requests) -> bool {
        self.retired && !self.parts.any(requests)
    }

    /// Whether fast ticks are needed. They are needed if the limiter holds a request, or if
    /// intervals are short and requests are in progress.
    pub(crate) fn is_busy(&self, requests: &Requests) -> bool {
        let short = interval(&self.config) < SLOW_TICK;
        self.limiter.held() > 0 || (short && !requests.is_empty())
    }

    /// Adds this worker's measurements to the record now, because the worker is about to end.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn flush(&mut self, host: &impl Host, now: Instant) -> Result<(), HostError> {
        let written = self.exchange(host, now, None);
        written.and(self.stats.flush(host))
    }

    /// Returns the rate in force, requests/s. It is infinite without a limit.
    pub fn rate(&self, workflow: WorkflowId) -> f64 {
        let level = self.published.level(workflow);
        level.map_or(f64::INFINITY, |level| level.rate)
    }

    /// Returns the name of a workflow, or `None` for [`OTHER`] and unknown ids.
    pub fn name(&self, workflow: WorkflowId) -> Option<&[u8]> {
        (workflow != OTHER).then(|| self.names.name(workflow.0))?
    }
}
