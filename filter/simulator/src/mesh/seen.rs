//! What clients and processes saw of a run.

use std::ops::Range;

/// What became of a client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It was answered.
    Served,
    /// The process at which it entered refused it.
    Refused,
    /// Something that it needed further down was refused or given up.
    Failed,
    /// The client gave up.
    TimedOut,
}

/// A client's request that has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ended {
    /// Index of its workflow.
    pub workflow: u16,
    /// Its size.
    pub size: u32,
    /// When the client sent it, ns since the start.
    pub sent: u64,
    /// When the client had an answer or gave up, ns since the start.
    pub at: u64,
    /// How long it held its slot where it entered, ns; of what was answered.
    pub held: u64,
    /// Its deadline after `sent`, ns; `u64::MAX` without one.
    pub within: u64,
    /// What became of it.
    pub ending: Ending,
}

impl Ended {
    /// From the client's sending to its end, s.
    #[must_use]
    pub fn latency_s(&self) -> f64 {
        (self.at - self.sent) as f64 / 1e9
    }

    /// Whether it was answered.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.ending == Ending::Served
    }
}

/// A process at a moment. Counts are since the start, by workflow.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProcessSample {
    /// Time of slots that were held, slot-seconds.
    pub busy: f64,
    /// Requests that hold a slot.
    pub running: u32,
    /// Requests that wait for one, in the queue of the stage.
    pub queued: u32,
    /// Requests that came.
    pub offered: Vec<u64>,
    /// Of those, refused: at once, or because they waited too long.
    pub refused: Vec<u64>,
    /// Of those, answered well.
    pub completed: Vec<u64>,
    /// Rate in force, requests/s; infinite without one.
    pub rates: Vec<f64>,
}

/// All processes at a moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sample {
    /// ns since the start.
    pub at: u64,
    /// By process.
    pub processes: Vec<ProcessSample>,
}

/// What was seen of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Seen {
    /// Requests of clients, in the order in which they ended.
    pub ended: Vec<Ended>,
    /// Clients' requests that were sent, by workflow.
    pub sent: Vec<u64>,
    /// Moments, one each interval, the first at 0.
    pub samples: Vec<Sample>,
    /// Processes of each service, as indices into [`Sample::processes`].
    pub services: Vec<Range<usize>>,
}

impl Seen {
    /// Requests of a workflow that were sent in a span of time, s. `None`: of all workflows.
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

    /// Requests of a workflow that were answered well in a span of time, s, by the second.
    #[must_use]
    pub fn throughput(&self, workflow: usize, time: Range<f64>) -> f64 {
        let (from, until) = ((time.start * 1e9) as u64, (time.end * 1e9) as u64);
        let served = self.ended.iter().filter(|ended| {
            usize::from(ended.workflow) == workflow
                && ended.is_served()
                && (from..until).contains(&ended.at)
        });
        served.count() as f64 / (time.end - time.start)
    }

    /// Part of a workflow's requests, sent in this time, that ended like this; ratio. `None` when there were none.
    #[must_use]
    pub fn part(&self, workflow: Option<usize>, time: Range<f64>, ending: Ending) -> Option<f64> {
        let (mut all, mut some) = (0_u64, 0_u64);
        for ended in self.sent_in(workflow, time) {
            all += 1;
            some += u64::from(ended.ending == ending);
        }
        (all > 0).then(|| some as f64 / all as f64)
    }

    /// Latencies of requests that were answered well, by when they were sent, s; sorted.
    #[must_use]
    pub fn latencies(&self, workflow: Option<usize>, time: Range<f64>) -> Vec<f64> {
        let served = self.sent_in(workflow, time).filter(|e| e.is_served());
        let mut latencies: Vec<f64> = served.map(Ended::latency_s).collect();
        latencies.sort_by(f64::total_cmp);
        latencies
    }

    /// Median latency of what ended well or by a timeout, by spans of `step` s: points of the span's end and the
    /// median, as in a smoothed time series.
    #[must_use]
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

    /// Sum over the processes of a service of what two moments differ in, by the second. Moments are those at or
    /// after these times, s.
    #[must_use]
    pub fn per_second(
        &self,
        service: usize,
        time: Range<f64>,
        value: impl Fn(&ProcessSample) -> f64,
    ) -> f64 {
        self.per_second_of(self.services[service].clone(), time, value)
    }

    /// The same of some processes.
    #[must_use]
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

    /// Part of a service's slots that were held, ratio.
    #[must_use]
    pub fn utilization(&self, service: usize, slots: u32, time: Range<f64>) -> f64 {
        let busy = self.per_second(service, time, |process| process.busy);
        busy / (self.services[service].len() as f64 * f64::from(slots))
    }

    /// Sum over a service's processes of a workflow's rates in force, requests/s, at each moment; `None` where one of
    /// them has none.
    #[must_use]
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

/// Of sorted values, the least that at least the part `q` of them does not exceed.
#[must_use]
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = (sorted.len() as f64 * q).ceil().max(1.0) as usize - 1;
    sorted.get(rank.min(sorted.len().checked_sub(1)?)).copied()
}

/// Mean; `None` of nothing.
#[must_use]
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
