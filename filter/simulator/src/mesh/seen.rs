//! Measurements of clients and processes in a run.

use std::ops::Range;

use crate::results::rank;

/// The outcome of a client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The request was answered.
    Served,
    /// The process that the request entered refused the request.
    Refused,
    /// A call on which the request depends was refused or given up.
    Failed,
    /// The client gave up.
    TimedOut,
}

/// A client's request that has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ended {
    /// Index of the request's workflow.
    pub workflow: u16,
    /// The request's size.
    pub size: u32,
    /// The time at which the client sent the request, ns since the start.
    pub sent: u64,
    /// The time at which the client received an answer or gave up, ns since the start.
    pub at: u64,
    /// The time for which the request held its slot at the entry, ns; only valid for answered
    /// requests.
    pub held: u64,
    /// The request's deadline, ns after `sent`; `u64::MAX` without a deadline.
    pub within: u64,
    /// The outcome of the request.
    pub ending: Ending,
}

impl Ended {
    /// Returns the time from sending to the end, s.
    pub fn latency_s(&self) -> f64 {
        (self.at - self.sent) as f64 / 1e9
    }

    /// Whether the request was answered.
    pub fn is_served(&self) -> bool {
        self.ending == Ending::Served
    }
}

/// A process's state at one time. Counts are since the start, by workflow.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProcessSample {
    /// Total time in slots, slot-seconds.
    pub busy: f64,
    /// The number of requests that hold a slot.
    pub running: u32,
    /// The number of requests in the stage's queue.
    pub queued: u32,
    /// Requests that arrived.
    pub offered: Vec<u64>,
    /// Requests refused, on arrival or after a wait.
    pub refused: Vec<u64>,
    /// Requests answered successfully.
    pub completed: Vec<u64>,
    /// The rate in force, requests/s; infinite without a rate.
    pub rates: Vec<f64>,
}

/// The state of all processes at one time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sample {
    /// The time, ns since the start.
    pub at: u64,
    /// Samples by process.
    pub processes: Vec<ProcessSample>,
}

/// The measurements of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Seen {
    /// Clients' requests that ended, in the order of their ends.
    pub ended: Vec<Ended>,
    /// Samples, one per interval, the first at 0.
    pub samples: Vec<Sample>,
    /// Processes of each service, as indices into [`Sample::processes`].
    pub services: Vec<Range<usize>>,
}

impl Seen {
    /// Yields the requests of a workflow that were sent within a span of time, s; `None` for all
    /// workflows.
    pub fn sent_in(
        &self,
        workflow: Option<usize>,
        time: Range<f64>,
    ) -> impl Iterator<Item = &Ended> {
        let (from, until) = ((time.start * 1e9) as u64, (time.end * 1e9) as u64);
        self.ended.iter().filter(move |ended| {
            workflow.is_none_or(|w| usize::from(ended.workflow) == w)
                && (from..until).contains(&ended.sent)
        })
    }

    /// Returns the rate of a workflow's successful answers, requests/s, in a span of time, s.
    pub fn throughput(&self, workflow: usize, time: Range<f64>) -> f64 {
        let (from, until) = ((time.start * 1e9) as u64, (time.end * 1e9) as u64);
        let served = self.ended.iter().filter(|ended| {
            usize::from(ended.workflow) == workflow
                && ended.is_served()
                && (from..until).contains(&ended.at)
        });
        served.count() as f64 / (time.end - time.start)
    }

    /// Returns the ratio of a workflow's requests sent in this time that ended with `ending`;
    /// `None` if there are no requests.
    pub fn part(&self, workflow: Option<usize>, time: Range<f64>, ending: Ending) -> Option<f64> {
        let (mut all, mut some) = (0_u64, 0_u64);
        for ended in self.sent_in(workflow, time) {
            all += 1;
            some += u64::from(ended.ending == ending);
        }
        (all > 0).then(|| some as f64 / all as f64)
    }

    /// Returns the latencies of successful requests that were sent in this time, s, ascending.
    pub fn latencies(&self, workflow: Option<usize>, time: Range<f64>) -> Vec<f64> {
        let served = self.sent_in(workflow, time).filter(|e| e.is_served());
        let mut latencies: Vec<f64> = served.map(Ended::latency_s).collect();
        latencies.sort_by(f64::total_cmp);
        latencies
    }

    /// Returns the median latency, s, of requests that were answered or timed out, in each span of
    /// `step` s. Each median is paired with the end of its span, as in a smoothed time series.
    pub fn medians(&self, workflow: usize, length: f64, step: f64) -> Vec<(f64, Option<f64>)> {
        let spans = (length / step).round() as usize;
        let mut by_span: Vec<Vec<f64>> = vec![Vec::new(); spans];
        for ended in &self.ended {
            let counts = matches!(ended.ending, Ending::Served | Ending::TimedOut);
            let span = (ended.at as f64 / 1e9 / step) as usize;
            if counts && usize::from(ended.workflow) == workflow && span < spans {
                by_span[span].push(ended.latency_s());
            }
        }
        let median = |(span, latencies): (usize, &mut Vec<f64>)| {
            latencies.sort_by(f64::total_cmp);
            ((span + 1) as f64 * step, quantile(latencies, 0.5))
        };
        by_span.iter_mut().enumerate().map(median).collect()
    }

    /// Returns the increase of a value per second between two samples, summed over a service's
    /// processes. The samples are the first at or after these times, s.
    pub fn per_second(
        &self,
        service: usize,
        time: Range<f64>,
        value: impl Fn(&ProcessSample) -> f64,
    ) -> f64 {
        self.per_second_of(self.services[service].clone(), time, value)
    }

    /// Returns the increase of a value per second, as [`Seen::per_second`] does, for a range of
    /// processes.
    pub fn per_second_of(
        &self,
        processes: Range<usize>,
        time: Range<f64>,
        value: impl Fn(&ProcessSample) -> f64,
    ) -> f64 {
        let moment = |s: f64| {
            let at = (s * 1e9) as u64;
            let found = self.samples.iter().find(|sample| sample.at >= at);
            found.or(self.samples.last())
        };
        let (Some(first), Some(last)) = (moment(time.start), moment(time.end)) else {
            return 0.0;
        };
        let sum = |sample: &Sample| -> f64 {
            sample.processes[processes.clone()].iter().map(&value).sum()
        };
        let seconds = last.at.saturating_sub(first.at) as f64 / 1e9;
        match seconds > 0.0 {
            true => (sum(last) - sum(first)) / seconds,
            false => 0.0,
        }
    }

    /// Returns the ratio of a service's slots that were held.
    pub fn utilization(&self, service: usize, slots: u32, time: Range<f64>) -> f64 {
        let busy = self.per_second(service, time, |process| process.busy);
        busy / (self.services[service].len() as f64 * f64::from(slots))
    }

    /// Returns a workflow's rates in force at each sample, summed over a service's processes,
    /// requests/s; `None` if a process has no rate.
    pub fn rates(&self, service: usize, workflow: usize) -> Vec<(f64, Option<f64>)> {
        let sum = |sample: &Sample| {
            let processes = sample.processes[self.services[service].clone()].iter();
            let sum: f64 = processes
                .map(|p| p.rates.get(workflow).copied().unwrap_or(f64::INFINITY))
                .sum();
            (sample.at as f64 / 1e9, sum.is_finite().then_some(sum))
        };
        self.samples.iter().map(sum).collect()
    }
}

/// Returns the quantile `q` of sorted values: the smallest value that at least the ratio `q` of the
/// values doesn't exceed.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    sorted.get(rank(sorted.len(), q)?).copied()
}
