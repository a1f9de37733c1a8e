//! Recorded traffic: an access log of Envoy.
//!
//! A log contains effects that a model leaves out: bursts of one type, varying load, retries after
//! refusals. Requests arrive at their recorded times with their recorded service times. The
//! policy's own rules derive the types of requests. A log is untrusted data, so lines that are not
//! requests are skipped and counted.
//!
//! The service time of a request is its `x-envoy-upstream-service-time`, else its `DURATION`. Both
//! are truncated to whole milliseconds, so half a millisecond is added, the mean of what is cut
//! off. Both include the queue wait in the backend itself. A request that Envoy answered itself,
//! such as a refused request, has no service time, and gets the service time of another request of
//! its type.

mod fields;
mod json;
mod text;
mod timestamp;

use std::io::BufRead;

use headgate_core::classify::Classifier;
use headgate_core::config::StageConfig;
use headgate_strategies::rng::Rng;
use headgate_strategies::strategy::TypeId;

use super::request::{cost, place};
use crate::source::{Request, Source};
use fields::Fields;

/// The longest recording: a month.
pub(crate) const LONGEST_HOURS: u64 = 31 * 24;
const LONGEST_NS: u64 = LONGEST_HOURS * 3_600_000_000_000;
/// The latest start time, in the year 2540, ns since the Unix epoch. A u64 has room for fourteen
/// more years, and so for every duration.
const LATEST_NS: u64 = 18_000_000_000_000_000_000;
/// The longest line, bytes.
const LONGEST_LINE: usize = 1 << 20;
/// The maximum number of skipped lines that a caveat names.
const EXAMPLES: usize = 3;

/// The reason why a log can't be replayed.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The log can't be read to its end.
    #[error("line {line}: can't be read: {error}")]
    Read {
        /// The line, from 1.
        line: u64,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// The log has no request to replay.
    #[error("no request: {0}")]
    Empty(String),
    /// No request has a service time.
    #[error("no service time: Envoy answered all {0} requests itself")]
    Unserved(usize),
    /// The first and the last request are too far apart, as in two logs that were joined.
    #[error("{0:.0} hours from the first request to the last; at most {LONGEST_HOURS}")]
    TooLong(f64),
    /// The policy's rules can't be compiled.
    #[error(transparent)]
    Rules(#[from] headgate_core::config::ConfigError),
}

/// The reason why a line is skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Passed {
    /// The line is not from an access log.
    #[error("neither a JSON object nor Envoy's text format")]
    Unknown,
    /// The line has no start time.
    #[error("no START_TIME")]
    NoStart,
    /// The start time is before the epoch, or too late for a number of ns.
    #[error("START_TIME before 1970 or after 2539")]
    FarStart,
    /// The line has no duration.
    #[error("neither DURATION nor x-envoy-upstream-service-time")]
    NoDuration,
    /// The line is too long.
    #[error("longer than 1 MiB")]
    TooLong,
    /// The policy excludes the request, or doesn't cover the request's route.
    #[error("bypasses the policy")]
    Bypasses,
}

/// Requests of an access log, as a stage receives them.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// Names and ids of the types in the recording, in the policy's order.
    types: Vec<(String, TypeId)>,
    /// Requests in order of arrival.
    requests: Vec<Request>,
    /// Requests that Envoy answered itself.
    unserved: u64,
    passed: PassedLines,
}

/// Skipped lines: reason, count, and the first line numbers.
type PassedLines = Vec<(Passed, u64, Vec<u64>)>;

/// Whether `head`, the start of a file, is from an access log rather than from YAML. Envoy's own
/// messages may precede the first request, as in a container's log.
pub fn is_access_log(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let mut fields = text.lines().filter_map(|line| fields(line).ok());
    fields.any(|fields| fields.start_ns.is_some())
}

fn fields(line: &str) -> Result<Fields, Passed> {
    match line.trim_start().as_bytes().first() {
        Some(b'{') => json::fields(line),
        Some(b'[') => text::fields(line),
        _ => Err(Passed::Unknown),
    }
}

impl Recording {
    /// Reads the requests to the stage from a log, JSON lines or text.
    ///
    /// # Errors
    /// [`RecordingError`].
    pub fn read(log: impl BufRead, stage: &StageConfig) -> Result<Self, RecordingError> {
        let classifier = Classifier::new(stage)?;
        let mut reader = Reader::default();
        reader.passed = read_lines(log, |fields| {
            reader.requests.push(raw(fields, &classifier)?);
            Ok(())
        })?;
        reader.finish(stage)
    }

    /// Returns the names and ids of the types that occur, in the policy's order. [`Request::kind`]
    /// is an index into this list.
    pub fn types(&self) -> &[(String, TypeId)] {
        &self.types
    }

    /// Returns the number of requests.
    pub fn count(&self) -> usize {
        self.requests.len()
    }

    /// Returns the time from the first request to the last, ns.
    pub(crate) fn length_ns(&self) -> u64 {
        self.requests.last().map_or(0, |last| last.at)
    }

    /// Returns the rate, requests per second.
    pub fn per_second(&self) -> f64 {
        self.requests.len() as f64 * 1e9 / self.period_ns()
    }

    /// Returns the mean service time, ms.
    pub fn mean_ms(&self) -> f64 {
        let sum: f64 = self.requests.iter().map(|r| r.processing as f64).sum();
        sum / 1e6 / self.requests.len().max(1) as f64
    }

    /// Returns the largest number of requests that were served at once.
    pub(crate) fn most_in_flight(&self) -> u32 {
        let ends = |r: &Request| [(r.at, 1), (r.at + r.processing, -1)];
        let mut events: Vec<(u64, i32)> = self.requests.iter().flat_map(ends).collect();
        // At equal times, ends are counted before starts.
        events.sort_unstable();
        let mut now = 0;
        let counts = events.iter().map(|(_, change)| {
            now += change;
            now
        });
        counts.max().unwrap_or(1).max(1).unsigned_abs()
    }

    /// Returns the service times of the requests of this type, ms.
    pub fn service_times_ms(&self, kind: TypeId) -> Vec<f64> {
        let at = self.types.iter().position(|(_, id)| *id == kind);
        let of_kind = self.requests.iter().filter(|r| Some(r.kind) == at);
        of_kind.map(|r| r.processing as f64 / 1e6).collect()
    }

    /// Returns caveats about the recording, one sentence each.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.passed.iter().map(say).collect();
        if self.unserved > 0 {
            notes.push(format!(
                "{} of {} requests were answered by Envoy itself; each gets the service time of \
                 another request of its type",
                self.unserved,
                self.requests.len()
            ));
        }
        notes
    }

    /// Returns the time after which a replay starts over, ns, including a gap after the last
    /// request. It is a second if all requests have one time, such as in a log of whole seconds.
    fn period_ns(&self) -> f64 {
        match self.length_ns() {
            0 => 1e9,
            length => length as f64 * self.count() as f64 / (self.count() - 1) as f64,
        }
    }

    /// Returns the measured length of a replay at `speed`, ns: the length of the recording, or the
    /// length of one whole replay if the replay is longer.
    pub(crate) fn replay_ns(&self, speed: f64) -> u64 {
        (self.period_ns() / speed.min(1.0)) as u64
    }

    /// Returns the least speed, at which a replay is as long as the longest recording: the
    /// simulation of a longer replay would hardly end.
    pub(crate) fn least_speed(&self) -> f64 {
        let least = self.period_ns() / LONGEST_NS as f64;
        f64::min(rounded_up(least), 1.0)
    }

    /// Returns the requests at `speed`, after `warm_up_ns` of the requests that precede the first
    /// request in a cyclic replay.
    pub(crate) fn replay(&self, speed: f64, warm_up_ns: u64) -> Replay<'_> {
        let period = self.period_ns() / speed;
        let before = (warm_up_ns as f64 / period).ceil();
        let mut replay = Replay {
            requests: &self.requests,
            next: 0,
            speed,
            period,
            round: warm_up_ns as f64 - before * period,
            end: warm_up_ns + self.replay_ns(speed),
        };
        // The loop skips requests before the start of the run.
        while replay.time().is_some_and(|at| at < 0.0) {
            replay.step();
        }
        replay
    }
}

/// Returns the number, rounded up to nine decimals.
pub(crate) fn rounded_up(number: f64) -> f64 {
    (number * 1e9).ceil() / 1e9
}

fn say((reason, count, examples): &(Passed, u64, Vec<u64>)) -> String {
    let lines: Vec<String> = examples.iter().map(u64::to_string).collect();
    let more = if *count > examples.len() as u64 {
        ", …"
    } else {
        ""
    };
    let noun = if *count == 1 {
        "line was"
    } else {
        "lines were"
    };
    let of = if lines.len() == 1 { "line" } else { "lines" };
    format!(
        "{count} {noun} skipped: {reason} ({of} {}{more})",
        lines.join(", ")
    )
}

/// Passes the fields of each line to `take`. Returns the skipped lines.
fn read_lines(
    mut log: impl BufRead,
    mut take: impl FnMut(&Fields) -> Result<(), Passed>,
) -> Result<PassedLines, RecordingError> {
    let mut passed = PassedLines::new();
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        match log.read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                return Err(RecordingError::Read {
                    line: number,
                    error,
                });
            }
        }
        if let Err(reason) = read_line(&line, &mut take) {
            pass(&mut passed, number, reason);
        }
    }
    Ok(passed)
}

fn read_line(
    line: &[u8],
    take: &mut impl FnMut(&Fields) -> Result<(), Passed>,
) -> Result<(), Passed> {
    if line.len() > LONGEST_LINE {
        return Err(Passed::TooLong);
    }
    let line = String::from_utf8_lossy(line);
    if line.trim().is_empty() {
        return Ok(());
    }
    take(&fields(&line)?)
}

fn pass(passed: &mut PassedLines, number: u64, reason: Passed) {
    let at = passed.iter().position(|(r, ..)| *r == reason);
    let at = at.unwrap_or_else(|| {
        passed.push((reason, 0, Vec::new()));
        passed.len() - 1
    });
    let (_, count, examples) = &mut passed[at];
    *count += 1;
    if examples.len() < EXAMPLES {
        examples.push(number);
    }
}

/// A request whose time is since the epoch, and whose service time may be missing.
struct Raw {
    start_ns: u64,
    service_ns: Option<u64>,
    request: Request,
}

#[derive(Default)]
struct Reader {
    requests: Vec<Raw>,
    passed: PassedLines,
}

impl Reader {
    fn finish(mut self, stage: &StageConfig) -> Result<Recording, RecordingError> {
        if self.requests.is_empty() {
            let found: Vec<String> = self.passed.iter().map(say).collect();
            let found = match found.is_empty() {
                true => "the file is empty".to_owned(),
                false => found.join("; "),
            };
            return Err(RecordingError::Empty(found));
        }
        // Envoy logs requests when they end, so the lines are not in the order of arrivals.
        self.requests.sort_by_key(|raw| raw.start_ns);
        let unserved = self
            .requests
            .iter()
            .filter(|r| r.service_ns.is_none())
            .count();
        if unserved == self.requests.len() {
            return Err(RecordingError::Unserved(unserved));
        }
        self.fill_in();
        let mut seen: Vec<usize> = self.requests.iter().map(|raw| raw.request.kind).collect();
        seen.sort_unstable();
        seen.dedup();
        let first = self.requests[0].start_ns;
        let length = self.requests[self.requests.len() - 1].start_ns - first;
        if length > LONGEST_NS {
            return Err(RecordingError::TooLong(length as f64 / 3.6e12));
        }
        let request = |raw: Raw| Request {
            at: raw.start_ns - first,
            kind: seen.binary_search(&raw.request.kind).unwrap_or(0),
            processing: raw.service_ns.unwrap_or(0),
            ..raw.request
        };
        let requests = self.requests.into_iter().map(request).collect();
        let named = |kind: &usize| {
            let name = stage.types.get(*kind).map(|kind| kind.name.clone());
            let id = TypeId(u16::try_from(*kind).unwrap_or(u16::MAX));
            (name.unwrap_or_default(), id)
        };
        Ok(Recording {
            types: seen.iter().map(named).collect(),
            requests,
            unserved: unserved as u64,
            passed: self.passed,
        })
    }

    /// Assigns each request without a service time the service time of another request, of the same
    /// type if possible.
    fn fill_in(&mut self) {
        // The seed is fixed, so that one log gives the same traffic in all runs.
        let mut rng = Rng::new(0);
        let known: Vec<(usize, u64)> = self
            .requests
            .iter()
            .filter_map(|raw| Some((raw.request.kind, raw.service_ns?)))
            .collect();
        let mut by_kind: Vec<Vec<u64>> = Vec::new();
        for (kind, ns) in &known {
            by_kind.resize_with(by_kind.len().max(kind + 1), Vec::new);
            by_kind[*kind].push(*ns);
        }
        let any: Vec<u64> = known.iter().map(|(_, ns)| *ns).collect();
        for raw in self.requests.iter_mut().filter(|r| r.service_ns.is_none()) {
            let own = by_kind.get(raw.request.kind).filter(|own| !own.is_empty());
            let times = own.unwrap_or(&any);
            let at = (rng.next_f64() * times.len() as f64) as usize;
            raw.service_ns = times.get(at).copied();
        }
    }
}

/// A request of an access log, independent of a policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Logged<'a> {
    /// Start, ns since the Unix epoch.
    pub start_ns: u64,
    /// The method.
    pub method: Option<&'a str>,
    /// The path, with its query.
    pub path: Option<&'a str>,
    /// The backend's service time, ns; `None` if Envoy answered the request itself.
    pub service_ns: Option<u64>,
    /// The time from the request's start to its answer, ns; `None` if the line has no duration.
    pub duration_ns: Option<u64>,
    /// The cost in the request's header.
    pub cost: Option<u32>,
}

/// Passes each request of a log, JSON lines or text, to `take`. Returns caveats about the skipped
/// lines, one sentence each.
///
/// # Errors
/// [`RecordingError::Read`].
pub fn read_requests(
    log: impl BufRead,
    mut take: impl FnMut(Logged<'_>),
) -> Result<Vec<String>, RecordingError> {
    let passed = read_lines(log, |fields| {
        let (start_ns, service_ns) = times(fields)?;
        take(Logged {
            start_ns,
            method: fields.request.method.as_deref(),
            path: fields.request.path.as_deref(),
            service_ns,
            duration_ns: fields.duration_ns(),
            cost: cost(&fields.request),
        });
        Ok(())
    })?;
    Ok(passed.iter().map(say).collect())
}

/// Returns the start and the service time of a request, ns.
fn times(fields: &Fields) -> Result<(u64, Option<u64>), Passed> {
    let start_ns = u64::try_from(fields.start_ns.ok_or(Passed::NoStart)?);
    let in_range = start_ns.ok().filter(|start_ns| *start_ns < LATEST_NS);
    let start_ns = in_range.ok_or(Passed::FarStart)?;
    let service_ns = match fields.reached_upstream {
        Some(false) => None,
        _ => Some(fields.service_ns().ok_or(Passed::NoDuration)?),
    };
    Ok((start_ns, service_ns))
}

fn raw(fields: &Fields, classifier: &Classifier) -> Result<Raw, Passed> {
    let (start_ns, service_ns) = times(fields)?;
    let place = place(classifier, &fields.request).ok_or(Passed::Bypasses)?;
    let request = Request {
        class: place.class,
        cost: place.cost,
        deadline: place.deadline,
        ..Request::new(0, usize::from(place.kind.0), 0)
    };
    Ok(Raw {
        start_ns,
        service_ns,
        request,
    })
}

/// A recording as a source, repeated until the run is long enough.
///
/// At ten times the speed, a recording of a minute would end after six seconds, too early for
/// meaningful percentiles, so the recording is repeated. The warm-up is a part of the repeated
/// recording, too, so that the engine has estimates when the measured time begins.
#[derive(Debug)]
pub(crate) struct Replay<'a> {
    requests: &'a [Request],
    next: usize,
    speed: f64,
    /// Length of a round, ns.
    period: f64,
    /// Start of this round, ns; negative if the round begins before the run.
    round: f64,
    /// The end of the run, ns.
    end: u64,
}

impl Replay<'_> {
    /// Returns the time of the next request, ns.
    fn time(&self) -> Option<f64> {
        let next = self.requests.get(self.next)?;
        Some(self.round + next.at as f64 / self.speed)
    }

    fn step(&mut self) {
        self.next += 1;
        if self.next == self.requests.len() {
            self.next = 0;
            self.round += self.period;
        }
    }
}

impl Source for Replay<'_> {
    fn peek(&self) -> Option<u64> {
        let at = self.time()? as u64;
        (at < self.end).then_some(at)
    }

    fn take(&mut self) -> Option<Request> {
        let at = self.peek()?;
        let next = *self.requests.get(self.next)?;
        self.step();
        Some(Request { at, ..next })
    }
}

#[cfg(test)]
mod tests;
