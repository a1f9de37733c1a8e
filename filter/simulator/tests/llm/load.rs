//! The mix of `scripts/bench llm`, open or with a fixed number of clients.

use std::collections::BTreeMap;

use headgate_core::refusal::Reason;
use headgate_core::rng::Rng;
use headgate_simulator::backend::batching::{Costs, Limits};
use headgate_simulator::backend::{Backend, Batching};
use headgate_simulator::{Answer, Ending, Request, Source};

use crate::mix::{MIX, SIZES, SLOTS, TPOT_PATIENCE, times_of};

pub(crate) const SECOND: u64 = 1_000_000_000;

/// Tokens that the server's tokenizer adds to a prompt.
const BEGIN: usize = 2;

/// A type of the mix and one of its sizes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Of {
    pub(crate) kind: usize,
    pub(crate) size: usize,
}

impl Of {
    /// Returns all of them.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..MIX.len()).flat_map(|kind| (0..SIZES.len()).map(move |size| Self { kind, size }))
    }

    /// Draws one of the mix.
    fn draw(rng: &mut Rng) -> Self {
        let mut part = rng.next_f64();
        let mut kind = 0;
        while kind + 1 < MIX.len() && part >= MIX[kind].share {
            part -= MIX[kind].share;
            kind += 1;
        }
        let size = (rng.next_f64() * SIZES.len() as f64) as usize;
        Self { kind, size }
    }

    /// Returns its share of the requests.
    pub(crate) fn share(self) -> f64 {
        MIX[self.kind].share / SIZES.len() as f64
    }

    /// Returns a request.
    fn request(self, at: u64) -> Request {
        let (kind, (prompt, output)) = (&MIX[self.kind], SIZES[self.size]);
        Request {
            prompt: (times_of(kind.prompt, prompt) + BEGIN) as u32,
            output: times_of(kind.output, output) as u32,
            ..Request::new(at, self.kind, 0)
        }
    }
}

/// The times of an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) kind: usize,
    /// Time from the arrival to the first token, ms.
    pub(crate) ttft: f64,
    /// Time per output token, ms.
    pub(crate) tpot: f64,
}

impl Times {
    fn of(request: &Request, begun: u64, ended: u64) -> Self {
        let ms = |from: u64, to: u64| (to - from) as f64 / 1e6;
        let gaps = request.output.saturating_sub(1).max(1);
        Self {
            kind: request.kind,
            ttft: ms(request.at, begun),
            tpot: ms(begun, ended) / f64::from(gaps),
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

/// Runs this many clients for some seconds without a proxy, all sending requests of the mix, or
/// only of one type and size. Returns the answers per second and their times.
pub(crate) fn closed_loop(clients: usize, only: Option<Of>, seconds: u64) -> (f64, Vec<Times>) {
    let mut rng = Rng::new(clients as u64);
    let mut server = server();
    let mut next = |at| only.unwrap_or_else(|| Of::draw(&mut rng)).request(at);
    let mut requests: Vec<(Request, u64)> = Vec::new();
    for client in 0..clients {
        requests.push((next(0), 0));
        server.take(0, client as u32, &requests[client].0);
    }
    let mut times = Vec::new();
    loop {
        let now = server.next_end();
        if now > seconds * SECOND {
            return (times.len() as f64 / seconds as f64, times);
        }
        let ended = server.end(now);
        while let Some(client) = server.begun() {
            requests[client as usize].1 = now;
        }
        if let Some(client) = ended {
            let (request, begun) = requests[client as usize];
            times.push(Times::of(&request, begun, now));
            requests[client as usize] = (next(now), 0);
            server.take(now, client, &requests[client as usize].0);
        }
    }
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
        let (per_second, times) = closed_loop(SLOTS, None, 200);
        let objectives = MIX.iter().enumerate().map(|(index, kind)| {
            let of_kind = || times.iter().filter(move |times| times.kind == index);
            Objectives {
                ttft: kind.patience * percentile(of_kind().map(|times| times.ttft), 90),
                tpot: TPOT_PATIENCE * percentile(of_kind().map(|times| times.tpot), 90),
            }
        });
        Self {
            per_second,
            objectives: objectives.collect(),
        }
    }
}

/// The results of a type.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub(crate) sent: u32,
    pub(crate) good: u32,
    /// The requests, and those that are good, by size.
    pub(crate) by_size: [(u32, u32); SIZES.len()],
    pub(crate) refused: BTreeMap<&'static str, u32>,
    pub(crate) times: Vec<Times>,
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
        let gap = -(1.0 - self.rng.next_f64()).ln() / self.per_second;
        let at = self.next.0.at + (gap * 1e9) as u64;
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
        let times = Times::of(request, begun, at);
        let objectives = self.calibration.objectives[request.kind];
        if let Some(counts) = self.counts(request) {
            counts.times.push(times);
            let good = times.ttft <= objectives.ttft && times.tpot <= objectives.tpot;
            counts.good += u32::from(good);
            counts.by_size[of.size].1 += u32::from(good);
        }
    }
}
