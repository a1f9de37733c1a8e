//! Gathers outcomes while a load runs.

use std::collections::BTreeMap;
use std::time::Duration;

use super::report::{Bin, LoadReport, TypeReport};
use super::schedule::Due;
use super::spec::LoadSpec;
use crate::quantiles::Durations;

/// The outcome of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// An answer. `refused` is the reason of a refusal, `service` is the time that the backend
    /// reports, and `stream` has the tokens.
    Answered {
        status: u16,
        refused: Option<String>,
        service: Duration,
        stream: Option<Stream>,
    },
    /// The request has no answer, because connecting, sending or receiving failed.
    TransportError,
    /// The client has left.
    Aborted,
    /// The request was never sent, because too many were outstanding.
    NotSent,
}

/// One request, for totals or curves that the report doesn't have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The index of the request's type in the specification.
    pub kind: usize,
    /// The time at which the request fell due, after the start.
    pub at: Duration,
    /// Delay of the sending after the request fell due. It is zero in a closed loop, where a
    /// request falls due when its client sends it.
    pub late: Duration,
    /// Time from the moment when the request fell due to its end. Zero for [`Ended::Unanswered`].
    pub latency: Duration,
    /// The outcome of the request.
    pub ended: Ended,
    /// Time in service, if the backend reports it (`x-backend-service-us`), otherwise zero.
    pub service: Duration,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The tokens of an answer that an LLM server streams.
    pub stream: Option<Stream>,
}

/// The tokens of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// Time from the moment when the request fell due to the first token.
    pub first: Duration,
    /// Time from the moment when the request fell due to the last token.
    pub last: Duration,
    /// The number of tokens.
    pub tokens: u32,
}

impl Stream {
    /// Returns the mean time between two tokens, or zero if there is only one token.
    pub fn per_token(&self) -> Duration {
        let gaps = self.tokens.saturating_sub(1).max(1);
        self.last.saturating_sub(self.first) / gaps
    }
}

/// The outcome of a request, in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The request was answered with 2xx.
    Ok,
    /// The request was refused, as [`super::TypeReport::refused`] counts.
    Refused,
    /// The request had any other end.
    Failed,
    /// The request has no end yet.
    Unanswered,
}

/// The outcomes of all requests so far.
#[derive(Debug)]
pub(super) struct Recorder {
    bin: Duration,
    warmup: Duration,
    measured: Duration,
    pub(super) lateness: Durations,
    pub(super) max_outstanding: usize,
    pub(super) connections: u64,
    /// The tallies of the types, followed by that of all types together.
    tallies: Vec<Tally>,
    /// Every request, in the order in which they fell due.
    pub(super) samples: Vec<Sample>,
}

#[derive(Debug, Default)]
struct Tally {
    name: String,
    p50: Option<Duration>,
    p90: Option<Duration>,
    offered: u64,
    finished: u64,
    ok: u64,
    /// The number of 2xx answers within the p90 objective of their own type.
    good: u64,
    refused: u64,
    refused_by: BTreeMap<String, u64>,
    status: BTreeMap<u16, u64>,
    transport_errors: u64,
    aborted: u64,
    not_sent: u64,
    latency: Durations,
    refusal_latency: Durations,
    bins: Vec<BinTally>,
}

#[derive(Debug, Clone, Default)]
struct BinTally {
    offered: u64,
    refused: u64,
    failed: u64,
    /// Latencies of 2xx answers, µs. A bin holds few answers, so they are kept individually.
    ok_us: Vec<u32>,
}

impl Recorder {
    pub(super) fn new(spec: &LoadSpec) -> Self {
        let tally = |name: &str, p50, p90| Tally {
            name: name.to_owned(),
            p50,
            p90,
            ..Tally::default()
        };
        let mut tallies: Vec<Tally> = spec
            .types
            .iter()
            .map(|t| tally(&t.name, t.p50, t.p90))
            .collect();
        tallies.push(tally("all", None, None));
        Self {
            bin: spec.bin,
            warmup: spec.warmup,
            measured: spec.duration().saturating_sub(spec.warmup),
            lateness: Durations::new(),
            max_outstanding: 0,
            connections: 0,
            tallies,
            samples: Vec::new(),
        }
    }

    /// Records that the request `due` is sent `late` after it fell due. Returns the position of the
    /// request among all requests.
    pub(super) fn offer(&mut self, due: &Due, late: Duration) -> u64 {
        let Due {
            kind, at, attempt, ..
        } = *due;
        let seq = self.samples.len() as u64;
        self.samples.push(Sample {
            kind,
            at,
            late,
            latency: Duration::ZERO,
            ended: Ended::Unanswered,
            service: Duration::ZERO,
            attempt,
            stream: None,
        });
        let (bin, measured) = (self.bin_of(at), at >= self.warmup);
        let total = self.tallies.len() - 1;
        for index in [kind, total] {
            let tally = &mut self.tallies[index];
            tally.bin(bin).offered += 1;
            tally.offered += u64::from(measured);
        }
        seq
    }

    /// Records that the request `due` ended, `latency` after it fell due.
    pub(super) fn finish(&mut self, due: &Due, latency: Duration, outcome: &Outcome) {
        let Due { kind, at, seq, .. } = *due;
        if let Some(sample) = usize::try_from(seq)
            .ok()
            .and_then(|seq| self.samples.get_mut(seq))
        {
            (sample.latency, sample.ended) = (latency, outcome.in_short());
            if let Outcome::Answered {
                service, stream, ..
            } = outcome
            {
                (sample.service, sample.stream) = (*service, *stream);
            }
        }
        let (bin, measured) = (self.bin_of(at), at >= self.warmup);
        let good = self.tallies[kind]
            .p90
            .is_none_or(|objective| latency <= objective);
        let total = self.tallies.len() - 1;
        for index in [kind, total] {
            self.tallies[index].bin(bin).add(latency, outcome);
            if measured {
                self.tallies[index].add(latency, outcome, good);
            }
        }
    }

    fn bin_of(&self, at: Duration) -> usize {
        (at.as_secs_f64() / self.bin.as_secs_f64()) as usize
    }

    pub(super) fn report(&self) -> LoadReport {
        let seconds = self.measured.as_secs_f64();
        let bin_seconds = self.bin.as_secs_f64();
        let mut types: Vec<TypeReport> = self
            .tallies
            .iter()
            .map(|t| t.report(seconds, bin_seconds))
            .collect();
        let total = types.pop().unwrap_or_default();
        LoadReport {
            seconds,
            bin_seconds,
            lateness_ms: self.lateness.summary(),
            max_outstanding: self.max_outstanding,
            connections: self.connections,
            total,
            types,
        }
    }
}

impl Tally {
    fn bin(&mut self, index: usize) -> &mut BinTally {
        if index >= self.bins.len() {
            self.bins.resize(index + 1, BinTally::default());
        }
        &mut self.bins[index]
    }

    fn add(&mut self, latency: Duration, outcome: &Outcome, good: bool) {
        self.finished += 1;
        match outcome {
            Outcome::Answered {
                status, refused, ..
            } => {
                *self.status.entry(*status).or_default() += 1;
                if let Some(reason) = refused {
                    self.refused += 1;
                    *self.refused_by.entry(reason.clone()).or_default() += 1;
                    self.refusal_latency.record(latency);
                } else if is_ok(*status) {
                    self.ok += 1;
                    self.good += u64::from(good);
                    self.latency.record(latency);
                }
            }
            Outcome::TransportError => self.transport_errors += 1,
            Outcome::Aborted => self.aborted += 1,
            Outcome::NotSent => self.not_sent += 1,
        }
    }

    fn report(&self, seconds: f64, bin_seconds: f64) -> TypeReport {
        let to_ms = |d: Duration| d.as_secs_f64() * 1_000.0;
        TypeReport {
            name: self.name.clone(),
            offered: self.offered,
            ok: self.ok,
            refused: self.refused,
            refused_by: self.refused_by.clone(),
            status: self.status.clone(),
            transport_errors: self.transport_errors,
            aborted: self.aborted,
            not_sent: self.not_sent,
            unanswered: self.offered - self.finished,
            latency_ms: self.latency.summary(),
            refusal_latency_ms: self.refusal_latency.summary(),
            objective_p50_ms: self.p50.map(to_ms),
            objective_p90_ms: self.p90.map(to_ms),
            goodput_rps: if seconds > 0.0 {
                self.good as f64 / seconds
            } else {
                0.0
            },
            series: self
                .bins
                .iter()
                .enumerate()
                .map(|(i, b)| b.point(i as f64 * bin_seconds))
                .collect(),
        }
    }
}

impl BinTally {
    fn add(&mut self, latency: Duration, outcome: &Outcome) {
        match outcome {
            Outcome::Answered {
                refused: Some(_), ..
            } => self.refused += 1,
            Outcome::Answered { status, .. } if is_ok(*status) => {
                self.ok_us
                    .push(u32::try_from(latency.as_micros()).unwrap_or(u32::MAX));
            }
            _ => self.failed += 1,
        }
    }

    fn point(&self, at_s: f64) -> Bin {
        let mut sorted = self.ok_us.clone();
        sorted.sort_unstable();
        // The quantile is that of the nearest rank: the smallest value that at least the ratio q
        // does not exceed.
        let quantile = |q: f64| {
            let rank = (q * sorted.len() as f64).ceil() as usize;
            sorted
                .get(rank.max(1) - 1)
                .map_or(0.0, |&us| f64::from(us) / 1_000.0)
        };
        Bin {
            at_s,
            offered: self.offered,
            ok: sorted.len() as u64,
            refused: self.refused,
            failed: self.failed,
            p50_ms: quantile(0.5),
            p90_ms: quantile(0.9),
        }
    }
}

impl Outcome {
    pub(super) fn in_short(&self) -> Ended {
        match self {
            Self::Answered {
                refused: Some(_), ..
            } => Ended::Refused,
            Self::Answered { status, .. } if is_ok(*status) => Ended::Ok,
            _ => Ended::Failed,
        }
    }
}

fn is_ok(status: u16) -> bool {
    (200..300).contains(&status)
}
