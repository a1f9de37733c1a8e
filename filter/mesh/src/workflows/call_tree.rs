//! The call tree of a request: the request's progress metrics (Wisp §4.2, Table 2), and the link
//! from a call to its request.
//!
//! A process adds its own work and its children's reports to the progress of its caller:
//!
//! ```text
//! elapsed = own + Σ elapsed(child) / parallelism       work = own + Σ work(child)
//! own = time in the slot − time with a child under way
//! parallelism = Σ duration(child) / time with a child under way, at least 1
//! ```
//!
//! Calls pass another listener than the request, often on another worker. A call finds its request
//! by a [`Token`] that the application copies. The token contains the state that the request had
//! when it went to the backend. The sums over the request's calls are in a *branch*, a blob that
//! the first call creates. Branches are reused, so each branch contains the number of its request
//! ([`Branch::generation`]). Each worker has at most [`MAX_BRANCHES`] branches. A request beyond
//! that number has no branch, and its progress lacks the progress of its children.
//!
//! Elapsed time ends at the response headers. Work is the sum of slot times. The paper also divides
//! work by the capacity of the resource.
//!
//! A call without an answer, or whose answer has no progress, counts with its duration, because the
//! request waited for it in any case.

use std::fmt::Write as _;
use std::time::Duration;

use headgate_core::host::Host;
use headgate_core::workers::WorkerId;
use headgate_strategies::host::HostError;
use headgate_strategies::request::{ClassId, Progress};
use headgate_strategies::time::{Instant, as_nanos, micros};
use serde::{Deserialize, Serialize};

use super::{ProcessId, WorkflowId};
use crate::shared;

/// The maximum number of requests on one worker with a branch.
pub const MAX_BRANCHES: u32 = 4096;

/// The digits of a token. Each digit encodes 6 bits, and is allowed in headers and in baggage.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// The number of fields of a token.
const FIELDS: usize = 13;
/// The number of digits of each field of a token. The fields are the process, the branch (worker,
/// slot, generation), the workflow, the class with the hash of the classes, the start and the
/// deadline (µs, up to 571 years), four spans that may be unknown (µs), and the age (ms).
const WIDTHS: [u32; FIELDS] = [3, 2, 3, 6, 3, 2, 9, 9, 6, 6, 6, 6, 3];
/// The number of bits of the class in a token. A policy has at most 16 classes.
const CLASS: u32 = 4;
/// The bits of the process in a token.
const PROCESS: u64 = (1 << 18) - 1;
/// The largest age in a token, ms (262 s in all).
const OLD: u64 = (1 << 18) - 1;
/// The largest span in a token, µs (71 minutes in all). It also encodes an unknown duration.
const UNKNOWN: u64 = (1 << 32) - 1;

/// A request's token, which the application copies to each call that it makes for the request. Only
/// engines of the same process can read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token([u8; Self::LENGTH]);

impl Token {
    /// The length of a token, bytes.
    pub const LENGTH: usize = 64;

    /// Returns the token as a header value.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("")
    }

    /// Returns the bytes of [`Token::as_str`].
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn encode(fields: [u64; FIELDS]) -> Self {
        let shifts = |(field, width): (u64, u32)| (0..width).rev().map(move |at| field >> (6 * at));
        let digits = fields.into_iter().zip(WIDTHS).flat_map(shifts);
        let mut bytes = [0; Self::LENGTH];
        for (byte, digit) in bytes.iter_mut().zip(digits) {
            *byte = DIGITS[digit as usize & 63];
        }
        Self(bytes)
    }

    fn decode(mut token: &[u8]) -> Option<[u64; FIELDS]> {
        let mut fields = [0; FIELDS];
        for (field, width) in fields.iter_mut().zip(WIDTHS) {
            let (digits, rest) = token.split_at_checked(width as usize)?;
            token = rest;
            for byte in digits {
                let digit = match byte {
                    b'A'..=b'Z' => byte - b'A',
                    b'a'..=b'z' => byte - b'a' + 26,
                    b'0'..=b'9' => byte - b'0' + 52,
                    b'-' => 62,
                    b'_' => 63,
                    _ => return None,
                };
                *field = *field << 6 | u64::from(digit);
            }
        }
        token.is_empty().then_some(fields)
    }
}

/// The address of the sums over one request's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Branch {
    /// The worker that has the request.
    pub(super) worker: WorkerId,
    /// The index among the worker's branches, below [`MAX_BRANCHES`].
    pub(super) slot: u32,
    /// The number of the request that uses the branch.
    pub(super) generation: u32,
}

/// The content of a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Parent {
    /// The process that made the token.
    pub(super) process: ProcessId,
    pub(super) branch: Option<Branch>,
    pub(super) workflow: WorkflowId,
    pub(super) class: ClassId,
    /// The hash of the names of all classes.
    pub(super) classes: u8,
    /// The time at which the request went to the backend.
    pub(super) started: Instant,
    pub(super) deadline: Option<Instant>,
    /// The progress that the request's caller sent. The age is the age at `started`.
    pub(super) progress: Progress,
}

impl Parent {
    /// Returns the token with this content.
    pub(super) fn token(&self) -> Token {
        // A slot beyond the last one encodes the absence of a branch.
        let (worker, slot, generation) = match self.branch {
            Some(branch) => (branch.worker, branch.slot, branch.generation),
            None => (0, MAX_BRANCHES, 0),
        };
        let time = |at: Instant| at.as_nanos() / 1_000;
        let span =
            |span: Option<Duration>| span.map_or(UNKNOWN, |span| micros(span).min(UNKNOWN - 1));
        let Progress {
            elapsed,
            total,
            work,
            total_work,
            age,
        } = self.progress;
        Token::encode([
            self.process.0 & PROCESS,
            worker.into(),
            slot.into(),
            generation.into(),
            self.workflow.0.into(),
            u64::from(self.classes) << CLASS | u64::from(self.class.0),
            time(self.started),
            self.deadline.map_or(0, |at| time(at).max(1)),
            span(Some(elapsed)),
            span(total),
            span(Some(work)),
            span(total_work),
            (micros(age) / 1_000).min(OLD),
        ])
    }

    /// Returns the content of `token`, or `None` if `process` didn't make the token.
    pub(super) fn of_token(process: ProcessId, token: &[u8]) -> Option<Self> {
        let [
            own,
            worker,
            slot,
            generation,
            workflow,
            class,
            started,
            deadline,
            elapsed,
            total,
            work,
            total_work,
            age,
        ] = Token::decode(token)?;
        if own != process.0 & PROCESS {
            return None;
        }
        let time = |micros: u64| Instant::from_nanos(micros.saturating_mul(1_000));
        let span = |us: u64| (us < UNKNOWN).then(|| Duration::from_micros(us));
        let branch = Branch {
            worker: u32::try_from(worker).ok()?,
            slot: u32::try_from(slot).ok()?,
            generation: u32::try_from(generation).ok()?,
        };
        Some(Self {
            process,
            branch: (branch.slot < MAX_BRANCHES).then_some(branch),
            workflow: WorkflowId(u16::try_from(workflow).ok()?),
            class: ClassId(u8::try_from(class & ((1 << CLASS) - 1)).ok()?),
            classes: u8::try_from(class >> CLASS).ok()?,
            started: time(started),
            deadline: (deadline > 0).then(|| time(deadline)),
            progress: Progress {
                elapsed: span(elapsed).unwrap_or_default(),
                total: span(total),
                work: span(work).unwrap_or_default(),
                total_work: span(total_work),
                age: Duration::from_millis(age),
            },
        })
    }
}

/// The sums over the calls of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Children {
    generation: u32,
    /// The time at which the request went to the backend, µs.
    started: u64,
    /// The number of calls under way.
    outstanding: u64,
    /// The time since which at least one call is under way.
    since: Instant,
    /// The total time with at least one call under way, up to the end of the last period with a
    /// call under way.
    #[serde(with = "as_nanos")]
    covered: Duration,
    /// Σ duration(child) over ended calls.
    #[serde(with = "as_nanos")]
    durations: Duration,
    /// Σ elapsed(child) over ended calls.
    #[serde(with = "as_nanos")]
    elapsed: Duration,
    /// Σ work(child) over ended calls.
    #[serde(with = "as_nanos")]
    work: Duration,
    ended: u64,
}

impl shared::Record for Children {
    const SCHEMA: u32 = 10;
}

impl Children {
    fn began(&mut self, now: Instant) {
        if self.outstanding == 0 {
            self.since = now;
        }
        self.outstanding = self.outstanding.saturating_add(1);
    }

    fn ended(&mut self, now: Instant, took: Duration, progress: Option<&Progress>) {
        self.durations = self.durations.saturating_add(took);
        let (elapsed, work) = progress.map_or((took, took), |p| (p.elapsed, p.work));
        // A child can't have an elapsed time longer than the duration of its call.
        self.elapsed = self.elapsed.saturating_add(elapsed.min(took));
        self.work = self.work.saturating_add(work);
        self.ended = self.ended.saturating_add(1);
        self.outstanding = self.outstanding.saturating_sub(1);
        if self.outstanding == 0 {
            self.covered = self.covered.saturating_add(now.since(self.since));
        }
    }

    /// Returns the progress until `now` of a request that began at `started`, including the
    /// progress of its children.
    pub(super) fn progress(&self, started: Instant, now: Instant) -> Progress {
        let open = if self.outstanding > 0 {
            now.since(self.since.max(started))
        } else {
            Duration::ZERO
        };
        let own = now.since(started).saturating_sub(self.covered + open);
        let covered = self.covered.as_secs_f64();
        let parallelism = if covered > 0.0 {
            (self.durations.as_secs_f64() / covered).clamp(1.0, self.ended.max(1) as f64)
        } else {
            1.0
        };
        Progress {
            elapsed: own + self.elapsed.div_f64(parallelism),
            work: own + self.work,
            ..Progress::default()
        }
    }
}

/// Access to the branches of a process, for one worker.
#[derive(Debug)]
pub(super) struct Branches {
    prefix: String,
    key: String,
}

impl Branches {
    pub(super) fn new(prefix: String) -> Self {
        Self {
            prefix,
            key: String::new(),
        }
    }

    fn find(&mut self, branch: Branch) {
        self.key.clear();
        let Branch { worker, slot, .. } = branch;
        // Writing to a string can't fail.
        write!(self.key, "{}/{worker}/{slot}", self.prefix).unwrap_or(());
    }

    /// Returns the sums over the calls of a request, or `None` if the request made no calls.
    ///
    /// # Errors
    /// [`HostError`].
    pub(super) fn load(
        &mut self,
        host: &impl Host,
        branch: Branch,
    ) -> Result<Option<Children>, HostError> {
        self.find(branch);
        let found: Children = shared::load(host, &self.key)?;
        Ok(Some(found).filter(|found| found.generation == branch.generation))
    }

    /// Changes the sums over the calls of a request. At the start of a call, `begins` is the time
    /// at which the request went to the backend. At the end of a call, `begins` is `None`. Returns
    /// the previous sums, or `None` if the branch belongs to another request.
    fn update(
        &mut self,
        host: &impl Host,
        branch: Branch,
        begins: Option<Instant>,
        change: impl Fn(&mut Children),
    ) -> Result<Option<Children>, HostError> {
        let begins = begins.map(|at| at.as_nanos() / 1_000);
        self.find(branch);
        let (_, before) = shared::change(host, &self.key, |there: &mut Children| {
            if there.generation != branch.generation {
                let Some(started) = begins.filter(|started| there.started <= *started) else {
                    return (false, None);
                };
                *there = Children {
                    generation: branch.generation,
                    started,
                    ..Children::default()
                };
            }
            let before = *there;
            change(there);
            (true, Some(before))
        })?;
        Ok(before)
    }

    /// Records the start of a call of the request that went to the backend at `started`. Returns
    /// the sums over the request's earlier calls, or `None` if the branch belongs to a later
    /// request.
    ///
    /// # Errors
    /// [`HostError`]. The call then doesn't count.
    pub(super) fn began(
        &mut self,
        host: &impl Host,
        now: Instant,
        branch: Branch,
        started: Instant,
    ) -> Result<Option<Children>, HostError> {
        self.update(host, branch, Some(started), |children| children.began(now))
    }

    /// Records the end of a call with its duration and the progress of its answer.
    ///
    /// # Errors
    /// [`HostError`]. The call then doesn't count.
    pub(super) fn ended(
        &mut self,
        host: &impl Host,
        now: Instant,
        branch: Branch,
        took: Duration,
        progress: Option<&Progress>,
    ) -> Result<(), HostError> {
        let change = |children: &mut Children| children.ended(now, took, progress);
        self.update(host, branch, None, change).map(drop)
    }
}

#[cfg(test)]
mod tests;
