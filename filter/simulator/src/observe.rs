//! A source that reports the progress of a run, and records outcomes of requests over time.

use crate::progress::Progress;
use crate::results::nearest_rank;
use crate::source::{Answer, Ending, Request, Source};

/// The number of requests between two progress reports: small enough for a smooth bar, and large
/// enough that reports take no noticeable time.
const REPORT_EVERY: u64 = 1 << 16;

/// A source with progress reports and timelines. Of the stage's reports, it forwards only answers
/// to the inner source.
pub(crate) struct Observed<'a> {
    source: Box<dyn Source + 'a>,
    progress: &'a dyn Progress,
    unreported: u64,
    timelines: [Option<Timeline>; 2],
}

impl<'a> Observed<'a> {
    /// Returns a source that records the outcomes of requests in these timelines.
    pub(crate) fn new(
        source: Box<dyn Source + 'a>,
        progress: &'a dyn Progress,
        timelines: [Option<Timeline>; 2],
    ) -> Self {
        Self {
            source,
            progress,
            unreported: 0,
            timelines,
        }
    }

    /// Removes and returns the recorded timelines.
    pub(crate) fn timelines(&mut self) -> [Option<Timeline>; 2] {
        std::mem::take(&mut self.timelines)
    }
}

impl Source for Observed<'_> {
    fn peek(&self) -> Option<u64> {
        self.source.peek()
    }

    fn take(&mut self) -> Option<Request> {
        self.unreported += 1;
        if self.unreported == REPORT_EVERY {
            self.progress.done(self.unreported);
            self.unreported = 0;
        }
        self.source.take()
    }

    fn answered(&mut self, request: &Request, at: u64, answer: Answer) {
        for timeline in self.timelines.iter_mut().flatten() {
            timeline.note(request, at, answer.ending);
        }
        self.source.answered(request, at, answer);
    }
}

impl Drop for Observed<'_> {
    fn drop(&mut self) {
        self.progress.done(self.unreported);
    }
}

/// Outcomes of requests, by the time of their arrival.
#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    /// The starts of the bins and the end of the last, ns, ascending.
    edges: Vec<u64>,
    bins: Vec<Bin>,
}

/// The outcomes in a span of time.
#[derive(Debug, Clone, Default)]
struct Bin {
    kinds: Vec<Tally>,
    /// The busy time of all servers, ns.
    busy: u64,
}

/// The outcomes of a type in a bin.
#[derive(Debug, Clone, Default)]
struct Tally {
    refused: u64,
    /// Response times, µs.
    served: Vec<u32>,
}

/// The counts of one type, or of all types, in a bin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Moment {
    /// The number of requests.
    pub(crate) offered: u64,
    /// The percentage of requests that were refused or failed.
    pub(crate) rejected_pct: f64,
}

impl Timeline {
    /// Returns empty bins between these edges, ns, for this number of types.
    pub(crate) fn new(edges: Vec<u64>, kinds: usize) -> Self {
        let bin = Bin {
            kinds: vec![Tally::default(); kinds],
            busy: 0,
        };
        Self {
            bins: vec![bin; edges.len().saturating_sub(1)],
            edges,
        }
    }

    fn bin(&self, at: u64) -> Option<usize> {
        let after = self.edges.partition_point(|edge| *edge <= at);
        after.checked_sub(1).filter(|bin| *bin < self.bins.len())
    }

    fn note(&mut self, request: &Request, at: u64, ending: Ending) {
        if let Some(bin) = self.bin(request.at) {
            let tally = &mut self.bins[bin].kinds[request.kind];
            match ending {
                Ending::Refused | Ending::Failed => tally.refused += 1,
                Ending::Served => {
                    let us = (at - request.at) / 1_000;
                    tally.served.push(u32::try_from(us).unwrap_or(u32::MAX));
                }
            }
        }
        if ending == Ending::Served {
            self.work(at.saturating_sub(request.processing), at);
        }
    }

    /// Adds the busy time of a server.
    fn work(&mut self, from: u64, to: u64) {
        let first = self.edges.partition_point(|edge| *edge <= from);
        for bin in first.saturating_sub(1)..self.bins.len() {
            let (begin, end) = (self.edges[bin], self.edges[bin + 1]);
            if begin >= to {
                return;
            }
            self.bins[bin].busy += to.min(end).saturating_sub(from.max(begin));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.bins.len()
    }

    /// Returns the start and the end of a bin, ns.
    pub(crate) fn span(&self, bin: usize) -> (u64, u64) {
        (self.edges[bin], self.edges[bin + 1])
    }

    /// Returns the busy ratio of `servers` in a bin.
    pub(crate) fn utilization(&self, bin: usize, servers: u32) -> f64 {
        let (from, to) = self.span(bin);
        self.bins[bin].busy as f64 / ((to - from).max(1) as f64 * f64::from(servers))
    }

    /// Returns the counts of type `kind` in a bin. For `None`, returns the counts of all types.
    pub(crate) fn moment(&self, bin: usize, kind: Option<usize>) -> Moment {
        let (mut refused, mut served) = (0, 0);
        for tally in self.tallies(bin, kind) {
            refused += tally.refused;
            served += tally.served.len() as u64;
        }
        let offered = refused + served;
        Moment {
            offered,
            rejected_pct: 100.0 * refused as f64 / offered.max(1) as f64,
        }
    }

    /// Returns the number of requests of one type in a bin that were served within `limit_us`, µs.
    /// For `None`, returns the number of all served requests.
    pub(crate) fn within(&self, bin: usize, kind: usize, limit_us: Option<u64>) -> u64 {
        let is_within = |us: &&u32| limit_us.is_none_or(|limit| u64::from(**us) <= limit);
        let served = self
            .tallies(bin, Some(kind))
            .flat_map(|tally| &tally.served);
        served.filter(is_within).count() as u64
    }

    /// Returns these quantiles of the response times of served requests, ms; `None` without served
    /// requests.
    pub(crate) fn quantiles(
        &self,
        bin: usize,
        kind: Option<usize>,
        quantiles: &[f64],
    ) -> Vec<Option<f64>> {
        let mut times: Vec<u32> = self
            .tallies(bin, kind)
            .flat_map(|tally| tally.served.iter().copied())
            .collect();
        let mut at = |q: &f64| Some(f64::from(nearest_rank(&mut times, *q)?) / 1e3);
        quantiles.iter().map(&mut at).collect()
    }

    fn tallies(&self, bin: usize, kind: Option<usize>) -> impl Iterator<Item = &Tally> {
        let kinds = &self.bins[bin].kinds;
        let range = kind.map_or(0..kinds.len(), |kind| kind..kind + 1);
        kinds[range].iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn requests_count_where_they_arrived_and_work_where_it_was_done() {
        let mut timeline = Timeline::new(vec![100 * MS, 200 * MS, 300 * MS], 2);
        let request = |at: u64, kind, processing: u64| Request::new(at * MS, kind, processing * MS);
        // The request arrives before the first bin, but its service extends into the first bin.
        timeline.note(&request(50, 0, 60), 110 * MS, Ending::Served);
        timeline.note(&request(150, 0, 100), 270 * MS, Ending::Served);
        timeline.note(&request(199, 1, 1), 199 * MS, Ending::Refused);
        timeline.note(&request(200, 1, 10), 400 * MS, Ending::Served);

        let moments = |kind| [0, 1].map(|bin| timeline.moment(bin, kind).offered);
        assert_eq!(
            (moments(Some(0)), moments(Some(1)), moments(None)),
            ([1, 0], [1, 1], [2, 1])
        );
        assert_eq!(timeline.moment(0, None).rejected_pct, 50.0);
        assert_eq!(timeline.quantiles(0, None, &[0.5, 0.9]), [Some(120.0); 2]);
        assert_eq!(timeline.quantiles(1, Some(0), &[0.5]), [None]);
        // The first bin contains 10 ms of the first request and 30 ms of the second. The second bin
        // contains 70 ms of the second request.
        assert!((timeline.utilization(0, 2) - 0.2).abs() < 1e-9);
        assert!((timeline.utilization(1, 2) - 0.35).abs() < 1e-9);
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_times() {
        let mut timeline = Timeline::new(vec![0, 1], 1);
        for ms in (1..=100).rev() {
            timeline.note(&Request::new(0, 0, 0), ms * MS, Ending::Served);
        }
        let found = timeline.quantiles(0, None, &[0.0, 0.5, 0.9, 0.999, 1.0]);
        assert_eq!(found, [1.0, 50.0, 90.0, 100.0, 100.0].map(Some));
    }
}
