//! Compares the simulator's model of llama-server with the server itself, for 1 to 8 clients.
//!
//! The machine's speed differs between runs, so model and server are compared relative to their own
//! speed. All times of the model are multiplied by one factor, so that the throughputs agree on
//! average. Clients start at the same time, so the server processes their prompts together. In the
//! model, this is the case after the first iteration.

use std::time::Duration;

use anyhow::Result;
use headgate_simulator::Request;
use headgate_strategies::rng::Rng;
use serde::Serialize;

use super::server::{Batching, Costs, Limits};
use super::{Bench, MIX, Options, SIZES, SLOTS, Server, answer, mix};
use crate::bench::cpu;
use crate::bench::table::{Table, times};
use crate::load::{RequestType, Stream};

/// Numbers of clients.
const CLIENTS: [usize; 4] = [1, 2, 4, 8];
/// The length of a run with requests of one size.
const ONE_SIZE: Duration = Duration::from_secs(4);
/// The length of a run with the mix.
const MIXED: Duration = Duration::from_secs(10);

/// The comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Fit {
    rows: Vec<Row>,
}

/// One load.
#[derive(Debug, Clone, Serialize)]
struct Row {
    /// The type, whose requests have its mean size. `None` for the mix.
    kind: Option<usize>,
    clients: usize,
    /// The server's figures in each round.
    rounds: Vec<Figures>,
    model: Figures,
}

/// The geometric mean of the server's figures over some rounds.
fn mean<'a>(rounds: &(impl Iterator<Item = &'a Figures> + Clone)) -> Figures {
    let of = |figure: fn(&Figures) -> f64| {
        let logs: Vec<f64> = rounds.clone().map(|round| figure(round).ln()).collect();
        (logs.iter().sum::<f64>() / logs.len() as f64).exp()
    };
    Figures {
        answers_per_s: of(|figures| figures.answers_per_s),
        ttft_p50_ms: of(|figures| figures.ttft_p50_ms),
        tpot_p50_ms: of(|figures| figures.tpot_p50_ms),
    }
}

impl Row {
    fn server(&self) -> Figures {
        mean(&self.rounds.iter())
    }

    /// Returns the throughput of the even rounds divided by that of the odd rounds.
    fn halves(&self) -> f64 {
        let half = |first| mean(&self.rounds.iter().skip(first).step_by(2)).answers_per_s;
        half(1) / half(0)
    }
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Figures {
    answers_per_s: f64,
    ttft_p50_ms: f64,
    tpot_p50_ms: f64,
}

/// Measures the server, and simulates it.
///
/// # Errors
/// The errors of [`super::run`].
pub fn fit(options: &Options) -> Result<Fit> {
    super::leave_core()?;
    let bench = Bench::prepare(options)?;
    let server = bench.server(SLOTS)?;
    let loads = [Some(0), Some(1), Some(2), None].into_iter();
    let loads = loads.flat_map(|kind| CLIENTS.map(|clients| (kind, clients)));
    let mut rows: Vec<Row> = loads
        .map(|(kind, clients)| Row {
            kind,
            clients,
            rounds: Vec::new(),
            model: Figures::of_model(kind, clients, time(kind)),
        })
        .collect();
    // Each round has all loads, so that a change of the machine's speed concerns all of them.
    for _ in 0..options.rounds {
        for row in &mut rows {
            let measured = Figures::of_server(&server, row.kind, row.clients)?;
            row.rounds.push(measured);
        }
    }
    Ok(Fit { rows })
}

fn time(kind: Option<usize>) -> Duration {
    if kind.is_some() { ONE_SIZE } else { MIXED }
}

fn requests(kind: Option<usize>) -> Vec<RequestType> {
    match kind.map(|kind| &MIX[kind]) {
        Some(kind) => vec![super::request(kind.name, kind.prompt, kind.output)],
        None => super::requests(),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    cpu::median(&values.collect::<Vec<f64>>())
}

impl Figures {
    fn of_server(server: &Server, kind: Option<usize>, clients: usize) -> Result<Self> {
        let until = time(kind);
        let samples = super::closed_loop(server, requests(kind), clients, until)?;
        let answers = samples
            .iter()
            .filter_map(|sample| Some((sample.at + sample.latency, answer(sample)?)));
        let streams: Vec<(Duration, Stream)> =
            answers.filter(|(ended, _)| *ended < until).collect();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let last = streams.iter().map(|(ended, _)| *ended).max();
        Ok(Self {
            answers_per_s: streams.len() as f64 / last.unwrap_or(until).as_secs_f64(),
            ttft_p50_ms: median(streams.iter().map(|(_, stream)| ms(stream.first))),
            tpot_p50_ms: median(streams.iter().map(|(_, stream)| ms(stream.per_token()))),
        })
    }

    fn of_model(kind: Option<usize>, clients: usize, time: Duration) -> Self {
        // The mix is random, so short runs of it differ.
        let time = if kind.is_some() { time } else { time * 10 };
        let mut rng = Rng::new(clients as u64);
        let next = |at| {
            let (kind, size) = match kind {
                Some(kind) => (kind, (1.0, 1.0)),
                None => {
                    let (kind, size) = mix::at(rng.next_f64());
                    (kind, SIZES[size])
                }
            };
            let (prompt, output) = mix::tokens(kind, size);
            Request {
                prompt,
                output,
                ..Request::new(at, kind, 0)
            }
        };
        let server = Batching::new(Limits::llama_server(SLOTS as u32), Costs::LLAMA_SERVER);
        let answers = server.closed_loop(clients as u32, time.as_nanos() as u64, next);
        let last = answers.last().map_or(f64::NAN, |last| last.ended as f64);
        Self {
            answers_per_s: answers.len() as f64 * 1e9 / last,
            ttft_p50_ms: median(answers.iter().map(|answer| answer.ttft_ms())),
            tpot_p50_ms: median(answers.iter().map(|answer| answer.tpot_ms())),
        }
    }
}

impl Fit {
    /// Returns the factor by which the model's times are multiplied.
    fn slowness(&self) -> f64 {
        let ratio = |row: &Row| (row.model.answers_per_s / row.server().answers_per_s).ln();
        (self.rows.iter().map(ratio).sum::<f64>() / self.rows.len() as f64).exp()
    }

    /// Returns a table with the server's figures, the difference of the server between rounds, and
    /// the model's figures divided by the server's.
    pub fn table(&self) -> String {
        let slowness = self.slowness();
        let mut table = Table::new(&[
            "",
            "clients",
            "answers/s",
            "even ÷ odd rounds",
            "model",
            "TTFT p50, ms",
            "model",
            "TPOT p50, ms",
            "model",
        ]);
        for row in &self.rows {
            let (server, model) = (row.server(), row.model);
            table.row(vec![
                row.kind.map_or("mix", |kind| MIX[kind].name).to_owned(),
                row.clients.to_string(),
                format!("{:.1}", server.answers_per_s),
                times(row.halves()),
                times(model.answers_per_s / slowness / server.answers_per_s),
                format!("{:.1}", server.ttft_p50_ms),
                times(model.ttft_p50_ms * slowness / server.ttft_p50_ms),
                format!("{:.2}", server.tpot_p50_ms),
                times(model.tpot_p50_ms * slowness / server.tpot_p50_ms),
            ]);
        }
        format!("\nThe model's times are multiplied by {slowness:.2}.\n{table}")
    }
}
