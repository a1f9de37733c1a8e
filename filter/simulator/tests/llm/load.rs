//! Requests of the mix of `scripts/bench llm`, from an open loop or from a fixed number of clients.

use std::collections::BTreeMap;
use std::time::Duration;

use headgate_core::config::StageConfig;
use headgate_simulator::{Answer, Ending, Request, Run, Source, Until};
use headgate_strategies::reason::Reason;
use headgate_strategies::rng::Rng;
use headgate_strategies::strategy::TypeId;
use serde_json::Value;

use crate::mix::{self, MIX, SIZES, SLOTS, TPOT_PATIENCE};
use crate::server::{Batching, Costs, Limits, Streamed};

pub(crate) const SECOND: u64 = 1_000_000_000;

/// The bytes of a request's body, without the bytes of the prompt.
const BODY: u32 = 80;

/// A type of the mix and one of its sizes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Of {
    pub(crate) kind: usize,
    pub(crate) size: usize,
}

impl Of {
    /// Returns all combinations of type and size.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..MIX.len()).flat_map(|kind| (0..SIZES.len()).map(move |size| Self { kind, size }))
    }

    /// Draws a type and a size from the mix.
    fn draw(rng: &mut Rng) -> Self {
        let (kind, size) = mix::at(rng.next_f64());
        Self { kind, size }
    }

    /// Returns the share of this type and size among the requests.
    pub(crate) fn share(self) -> f64 {
        MIX[self.kind].share / SIZES.len() as f64
    }

    /// Returns a request of this type and size that arrives at `at`, ns.
    fn request(self, at: u64) -> Request {
        let (prompt, output) = mix::tokens(self.kind, SIZES[self.size]);
        Request {
            prompt,
            output,
            // The cost is the request's size.
            cost: prompt + BODY,
            ..Request::new(at, self.kind, 0)
        }
    }
}

/// Returns the nearest-rank percentile of the values; `NaN` without values.
pub(crate) fn percentile(values: impl Iterator<Item = f64>, percent: usize) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let at = (values.len() * percent).div_ceil(100).max(1) - 1;
    values.get(at).copied().unwrap_or(f64::NAN)
}

/// Returns the server of the benchmark.
pub(crate) fn server() -> Batching {
    Batching::new(Limits::llama_server(SLOTS as u32), Costs::LLAMA_SERVER)
}

/// Runs requests of one type through a policy until `measured` seconds after `warm_up` seconds.
pub(crate) fn run(
    stage: Value,
    (warm_up, measured): (u64, u64),
    source: &mut impl Source,
    server: Batching,
) {
    let stage: StageConfig = serde_json::from_value(stage).unwrap();
    let run = Run {
        stage: &stage,
        kinds: &[TypeId(0)],
        warm_up: Duration::from_secs(warm_up),
        until: Until::Time(Duration::from_secs(warm_up + measured)),
        seed: 1,
    };
    run.with(source, server).unwrap();
}

/// Draws the time until the next of Poisson arrivals, ns.
pub(crate) fn gap(rng: &mut Rng, per_second: f64) -> u64 {
    (-(1.0 - rng.next_f64()).ln() / per_second * 1e9) as u64
}

/// Runs this many clients for some seconds without a proxy. All clients send requests of the mix,
/// or only requests of one type and size.
pub(crate) fn closed_loop(clients: usize, only: Option<Of>, seconds: u64) -> Vec<Streamed> {
    let mut rng = Rng::new(clients as u64);
    server().closed_loop(clients as u32, seconds * SECOND, |at| {
        only.unwrap_or_else(|| Of::draw(&mut rng)).request(at)
    })
}

/// The objectives of a type, ms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Objectives {
    pub(crate) ttft: f64,
    pub(crate) tpot: f64,
}

/// The capacity of the server and the objectives of the types, as `scripts/bench llm` finds them.
pub(crate) struct Calibration {
    pub(crate) per_second: f64,
    pub(crate) objectives: Vec<Objectives>,
}

impl Calibration {
    pub(crate) fn run() -> Self {
        const SECONDS: u64 = 200;
        let answers = closed_loop(SLOTS, None, SECONDS);
        let objectives = MIX.iter().enumerate().map(|(index, kind)| {
            let of_kind = || answers.iter().filter(move |of| of.request.kind == index);
            Objectives {
                ttft: kind.patience * percentile(of_kind().map(Streamed::ttft_ms), 90),
                tpot: TPOT_PATIENCE * percentile(of_kind().map(Streamed::tpot_ms), 90),
            }
        });
        Self {
            per_second: answers.len() as f64 / SECONDS as f64,
            objectives: objectives.collect(),
        }
    }
}

/// The results of a type.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub(crate) sent: u32,
    pub(crate) good: u32,
    /// The numbers of all requests and of good requests, by size.
    pub(crate) by_size: [(u32, u32); SIZES.len()],
    pub(crate) refused: BTreeMap<&'static str, u32>,
    pub(crate) answers: Vec<Streamed>,
}

/// Poisson arrivals of the mix, with their results.
pub(crate) struct Open<'a> {
    rng: Rng,
    per_second: f64,
    calibration: &'a Calibration,
    /// The start of counting, ns.
    from: u64,
    next: (Request, Of),
    /// The requests that haven't ended, with the time of their first token, by [`Request::client`].
    pending: BTreeMap<u32, (Of, u64)>,
    sent: u32,
    pub(crate) counts: Vec<Counts>,
}

impl<'a> Open<'a> {
    pub(crate) fn new(calibration: &'a Calibration, load: f64, from: u64, seed: u64) -> Self {
        let mut open = Self {
            rng: Rng::new(seed),
            per_second: load * calibration.per_second,
            calibration,
            from,
            next: (Request::new(0, 0, 0), Of { kind: 0, size: 0 }),
            pending: BTreeMap::new(),
            sent: 0,
            counts: vec![Counts::default(); MIX.len()],
        };
        open.draw();
        open
    }

    fn draw(&mut self) {
        let at = self.next.0.at + gap(&mut self.rng, self.per_second);
        let of = Of::draw(&mut self.rng);
        let request = Request {
            client: self.sent,
            ..of.request(at)
        };
        self.sent += 1;
        self.next = (request, of);
    }

    fn counts(&mut self, request: &Request) -> Option<&mut Counts> {
        (request.at >= self.from).then(|| &mut self.counts[request.kind])
    }
}

impl Source for Open<'_> {
    fn peek(&self) -> Option<u64> {
        Some(self.next.0.at)
    }

    fn take(&mut self) -> Option<Request> {
        let (request, of) = self.next;
        self.draw();
        self.pending.insert(request.client, (of, 0));
        if let Some(counts) = self.counts(&request) {
            counts.sent += 1;
            counts.by_size[of.size].0 += 1;
        }
        Some(request)
    }

    fn begun(&mut self, request: &Request, at: u64) {
        if let Some(pending) = self.pending.get_mut(&request.client) {
            pending.1 = at;
        }
    }

    fn refused(&mut self, request: &Request, reason: Reason) {
        if let Some(counts) = self.counts(request) {
            *counts.refused.entry(reason.answer().name).or_default() += 1;
        }
    }

    fn answered(&mut self, request: &Request, at: u64, answer: Answer) {
        let Some((of, begun)) = self.pending.remove(&request.client) else {
            return;
        };
        if answer.ending != Ending::Served {
            return;
        }
        let answer = Streamed {
            request: *request,
            begun,
            ended: at,
        };
        let objectives = self.calibration.objectives[request.kind];
        if let Some(counts) = self.counts(request) {
            counts.answers.push(answer);
            let good = answer.ttft_ms() <= objectives.ttft && answer.tpot_ms() <= objectives.tpot;
            counts.good += u32::from(good);
            counts.by_size[of.size].1 += u32::from(good);
        }
    }
}
