//! A real LLM server behind each protection: llama-server with continuous batching, and streamed
//! answers.
//!
//! The measure is goodput: answers per second whose time to the first token (TTFT) and time per
//! output token (TPOT) are inside the objectives of their type. Times are measured from the moment
//! when a request should have been sent. The server has one core, and Envoy and the clients have
//! the others.
//!
//! The sizes within a type differ by a factor of 4.5, as those of prompts do. The proxy gets a
//! request's type from a header, and the length of its prompt from the length of the body.

mod fit;
mod mix;
mod model;
mod report;
mod rows;
mod server;
mod tenants;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;
use tempfile::TempDir;

pub use self::fit::{Fit, fit};
use self::mix::{Demand, Kind, MIX, SIZES, SLOTS, TPOT_PATIENCE, most_answers, times_of};
pub use self::report::{Ideal, Measured, Report, RowReport, Run, TypeMeasured, TypeReport, table};
use self::rows::{Candidate, Row, rows, unfiltered};
pub use self::tenants::{Tenants, tenants};
use super::lab::{Lab, Protection, redirect};
use super::wild::{leave_core, on_core};
use crate::backend::{BackendConfig, ServiceType};
use crate::bootstrap::Bootstrap;
use crate::http;
use crate::kube::programs;
use crate::load::{self, Clients, Ended, LoadSpec, RequestType, Sample, Stream};
use crate::mesh::ports::free_port;
use crate::process::Child;
use crate::quantiles::{Durations, Quantiles};
use crate::wait;

/// The context of each slot in tokens, more than the largest request needs.
const CONTEXT: usize = 2_560;
/// The header that names a request's type.
const OBJECTIVE: &str = "x-gateway-inference-objective";
/// The load at which candidates are compared, as a multiple of capacity.
const SEARCH_LOAD: f64 = 1.5;
/// The load that counts as no load, as a multiple of capacity.
const UNLOADED: f64 = 0.2;
/// The measured time at [`UNLOADED`], long enough for a 99th percentile of type `chat`.
const UNLOADED_TIME: Duration = Duration::from_secs(60);
/// Time before the measured part of a closed loop.
const SETTLING: Duration = Duration::from_secs(3);
/// The measured time of a closed loop with requests of one type and size.
const ONE_SIZE: Duration = Duration::from_secs(5);
/// The time for which answers are awaited after a run. All later answers have missed their
/// objectives.
const DRAIN: Duration = Duration::from_secs(5);

/// The options of a benchmark.
#[derive(Debug, Clone)]
pub struct Options {
    /// Offered loads as multiples of capacity.
    pub loads: Vec<f64>,
    /// Measured time of each run.
    pub measured: Duration,
    /// Duration of the load before the measured time, in which a protection adapts.
    pub warmup: Duration,
    /// The number of runs of each row at each load.
    pub rounds: usize,
    /// Names of the rows to run. An empty list means all.
    pub only: Vec<String>,
    /// Worker threads of Envoy.
    pub workers: u32,
}

/// The server's files, and the results of its calibration.
struct Bench<'a> {
    options: &'a Options,
    dir: TempDir,
    capacity_rps: f64,
    types: Vec<TypeReport>,
    /// The server's time for a request of each type and size, s, in the order of [`requests`].
    costs: Vec<f64>,
}

/// A running server.
struct Server {
    process: Child,
    addr: SocketAddr,
}

/// Runs the whole benchmark. `progress` gets a line for each run.
///
/// # Errors
/// If a part of a system doesn't start or run. If this kind of machine can't have the server,
/// [`programs::why_unavailable`] returns the reason.
pub fn run(options: &Options, mut progress: impl FnMut(&str)) -> Result<Report> {
    programs::llama()?;
    leave_core()?;
    let mut bench = Bench::prepare(options)?;
    bench.calibrate()?;
    let types = bench.types.iter().map(TypeReport::words);
    progress(&format!(
        "capacity {:.1} requests/s; {}",
        bench.capacity_rps,
        types.collect::<Vec<_>>().join("; ")
    ));
    let unloaded = bench.measure(&unfiltered(SLOTS), UNLOADED, 0, UNLOADED_TIME)?;
    progress(&format!("unloaded, {UNLOADED}×: {}", unloaded.words()));
    let mut report = Report {
        capacity_rps: bench.capacity_rps,
        types: bench.types.clone(),
        unloaded,
        ideal: options
            .loads
            .iter()
            .map(|&load| bench.ideal(load))
            .collect(),
        rows: Vec::new(),
        runs: Vec::new(),
    };
    let mut chosen = Vec::new();
    for row in rows(&bench.types, bench.capacity_rps) {
        if options.only.is_empty() || options.only.iter().any(|name| name == row.name) {
            let (row, candidate) = bench.choose(row, &mut progress)?;
            chosen.push((row.name, candidate));
            report.rows.push(row);
        }
    }
    for round in 1..=options.rounds {
        for &load in &options.loads {
            for (row, candidate) in &chosen {
                let result = bench.measure(candidate, load, round, options.measured)?;
                progress(&format!(
                    "round {round}, {load}×, {row}: {}",
                    result.words()
                ));
                report.runs.push(Run {
                    row,
                    load,
                    round,
                    result,
                });
            }
        }
    }
    Ok(report)
}

/// Returns the requests of the mix, type by type, each in all its sizes.
fn requests() -> Vec<RequestType> {
    let of_kind = |kind: &Kind| {
        SIZES.map(|(prompt, output)| {
            let (prompt, output) = (times_of(kind.prompt, prompt), times_of(kind.output, output));
            RequestType {
                share: kind.share / SIZES.len() as f64,
                ..request(kind.name, prompt, output)
            }
        })
    };
    MIX.iter().flat_map(of_kind).collect()
}

/// Returns a request of a type with these lengths of prompt and answer.
fn request(kind: &str, prompt: usize, output: usize) -> RequestType {
    let body = json!({
        "prompt": "a".repeat(prompt),
        "max_tokens": output,
        "stream": true,
        "temperature": 0,
        "ignore_eos": true,
    });
    let request = RequestType {
        method: "POST".to_owned(),
        body: body.to_string(),
        ..RequestType::get(kind, "/v1/completions")
    };
    request
        .header("content-type", "application/json")
        .header(OBJECTIVE, kind)
}

/// Returns the stream of an answer that arrived completely.
fn answer(sample: &Sample) -> Option<Stream> {
    sample.stream.filter(|_| sample.ended == Ended::Ok)
}

/// Yields the answers that ended in `[from, to)`, whenever they were sent. A long answer at the end
/// of the span compensates for one at its beginning.
fn ended_in(samples: &[Sample], from: Duration, to: Duration) -> impl Iterator<Item = &Sample> {
    samples.iter().filter(move |sample| {
        let end = sample.at + sample.latency;
        answer(sample).is_some() && from <= end && end < to
    })
}

/// Returns the answers per second that ended in `[from, to)`.
fn answers_per_second(samples: &[Sample], from: Duration, to: Duration) -> f64 {
    ended_in(samples, from, to).count() as f64 / (to - from).as_secs_f64()
}

/// Returns the TTFT and TPOT of a type's answers.
fn token_times<'a>(samples: impl Iterator<Item = &'a Sample>) -> (Quantiles, Quantiles) {
    let (mut first, mut per_token) = (Durations::new(), Durations::new());
    for stream in samples.filter_map(answer) {
        first.record(stream.first);
        per_token.record(stream.per_token());
    }
    (first.summary(), per_token.summary())
}

/// Makes Envoy open a connection to the server for each request. After a stream, the server closes
/// the connection without announcing that in the response. Envoy then responds 503 to requests that
/// it has already sent on the connection.
fn one_request_per_connection(bootstrap: &mut Bootstrap) -> Result<()> {
    const OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let extensions = &mut bootstrap.cluster("upstream")?["typed_extension_protocol_options"];
    extensions[OPTIONS] = json!({
        "@type": format!("type.googleapis.com/{OPTIONS}"),
        "explicit_http_config": {"http_protocol_options": {}},
        "common_http_protocol_options": {"max_requests_per_connection": 1},
    });
    Ok(())
}

/// Returns a load of this many clients. Each client sends its next request as soon as it has an
/// answer.
fn clients(
    addr: SocketAddr,
    requests: Vec<RequestType>,
    count: usize,
    until: Duration,
) -> LoadSpec {
    let mut spec = LoadSpec::new(addr, requests, 0.0, Duration::ZERO);
    spec.clients = vec![Clients {
        count,
        from: Duration::ZERO,
        until,
        think: Duration::ZERO,
    }];
    spec
}

/// Runs this many clients in front of a server. Each client sends its next request as soon as it
/// has an answer.
fn closed_loop(
    server: &Server,
    requests: Vec<RequestType>,
    count: usize,
    until: Duration,
) -> Result<Vec<Sample>> {
    let spec = clients(server.addr, requests, count, until);
    let (report, samples) = load::start(spec)?.wait_with_samples()?;
    if report.total.ok == 0 {
        bail!("llama-server answers nothing: {:?}", report.total.status);
    }
    Ok(samples)
}

/// Returns the index of a sample's type in [`MIX`].
fn kind_of(sample: &Sample) -> usize {
    sample.kind / SIZES.len()
}

impl<'a> Bench<'a> {
    fn prepare(options: &'a Options) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("headgate-llm-").tempdir()?;
        let bench = Self {
            options,
            dir,
            capacity_rps: 0.0,
            types: Vec::new(),
            costs: Vec::new(),
        };
        let mut file = BufWriter::new(File::create(bench.model())?);
        model::write(&mut file).and_then(|()| file.flush())?;
        Ok(bench)
    }

    fn model(&self) -> PathBuf {
        self.dir.path().join("model.gguf")
    }

    /// Starts a server with this many slots, and waits until it answers. Its prompt cache is off,
    /// because it would hold all of the load's few prompts.
    fn server(&self, slots: usize) -> Result<Server> {
        let port = free_port()?;
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut command = on_core(programs::llama()?);
        command
            .arg("--model")
            .arg(self.model())
            .args([
                "--host",
                &addr.ip().to_string(),
                "--port",
                &port.to_string(),
            ])
            .args(["--parallel", &slots.to_string()])
            .args(["--ctx-size", &(slots * CONTEXT).to_string()])
            .args(["--threads", "1", "--no-cache-prompt", "--cache-ram", "0"])
            .arg("--no-ui");
        let log = self.dir.path().join("llama-server.log");
        let child = Child::spawn_tied("llama-server", &command, &log)?;
        wait::until("llama-server to answer", || {
            match http::get(addr, "/health") {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(answer.body),
                Err(error) => Err(error.to_string()),
            }
        })
        .with_context(|| child.tail())?;
        Ok(Server {
            process: child,
            addr,
        })
    }

    /// Measures the times of a single client, and of as many clients as there are slots. These
    /// times define the capacity, and objectives that the server can meet.
    fn calibrate(&mut self) -> Result<()> {
        let alone = self.closed_loop(1)?;
        let busy = self.closed_loop(SLOTS)?;
        let end = SETTLING + self.options.measured;
        self.capacity_rps = answers_per_second(&busy, SETTLING, end);
        for (index, kind) in MIX.iter().enumerate() {
            let times = |samples: &[Sample]| {
                token_times(samples.iter().filter(|sample| kind_of(sample) == index))
            };
            let ((alone_ttft, _), (ttft, tpot)) = (times(&alone), times(&busy));
            if ttft.count == 0 || alone_ttft.count == 0 {
                bail!("{}: no answers in {:?}", kind.name, self.options.measured);
            }
            self.types.push(TypeReport {
                name: kind.name,
                alone_ttft_ms: alone_ttft.p50,
                alone_ttft_p99_ms: alone_ttft.p99,
                busy_ttft_ms: ttft.p90,
                busy_tpot_ms: tpot.p90,
                ttft_ms: ttft.p90 * kind.patience,
                tpot_ms: tpot.p90 * TPOT_PATIENCE,
            });
        }
        let server = self.server(SLOTS)?;
        let end = SETTLING + ONE_SIZE;
        for request in requests() {
            let samples = closed_loop(&server, vec![request], SLOTS, end)?;
            self.costs
                .push(1.0 / answers_per_second(&samples, SETTLING, end));
        }
        Ok(())
    }

    /// Returns the largest possible goodput at a load, that of a filter that knows each request's
    /// cost.
    fn ideal(&self, load: f64) -> Ideal {
        let demand = |(index, (request, &cost)): (usize, (RequestType, &f64))| Demand {
            kind: index / SIZES.len(),
            cost,
            per_second: request.share * load * self.capacity_rps,
        };
        let demands = requests().into_iter().zip(&self.costs);
        Ideal {
            load,
            by_type: most_answers(demands.enumerate().map(demand).collect()),
        }
    }

    /// Runs this many clients without a proxy. Each client sends its next request as soon as it has
    /// an answer.
    fn closed_loop(&self, clients: usize) -> Result<Vec<Sample>> {
        let server = self.server(SLOTS)?;
        let until = SETTLING + self.options.measured;
        closed_loop(&server, requests(), clients, until)
    }

    /// Returns the best candidate of a row at [`SEARCH_LOAD`].
    fn choose(&self, row: Row, progress: &mut impl FnMut(&str)) -> Result<(RowReport, Candidate)> {
        let mut searched = Vec::new();
        let mut best: Option<(f64, Candidate)> = None;
        let single = row.candidates.len() == 1;
        for candidate in row.candidates {
            let mut goodput = 0.0;
            if !single {
                let result = self.measure(&candidate, SEARCH_LOAD, 0, self.options.measured)?;
                goodput = result.goodput_rps;
                let setting = &candidate.setting;
                progress(&format!(
                    "search: {}, {setting}: {}",
                    row.name,
                    result.words()
                ));
                searched.push((setting.clone(), goodput));
            }
            if best.as_ref().is_none_or(|(most, _)| goodput > *most) {
                best = Some((goodput, candidate));
            }
        }
        let (_, best) = best.with_context(|| format!("{} has no candidates", row.name))?;
        let report = RowReport {
            name: row.name,
            title: row.title,
            searched,
            setting: best.setting.clone(),
        };
        Ok((report, best))
    }

    /// Starts a proxy in front of a server.
    fn lab(&self, protection: &Protection, server: &Server) -> Result<Lab> {
        let upstream = server.addr;
        // The lab's own backend gets no requests.
        let unused = BackendConfig::new(1, vec![ServiceType::constant("/", Duration::ZERO)]);
        Lab::start_with(protection, unused, self.options.workers, move |bootstrap| {
            redirect(bootstrap, Some(upstream))?;
            one_request_per_connection(bootstrap)
        })
    }

    /// Runs a load for a measured time in front of a fresh server behind a fresh proxy.
    fn measure(
        &self,
        candidate: &Candidate,
        load: f64,
        seed: usize,
        measured: Duration,
    ) -> Result<Measured> {
        let server = self.server(candidate.slots)?;
        let options = self.options;
        let lab = self.lab(&candidate.protection, &server)?;
        let end = options.warmup + measured;
        let mut spec = LoadSpec::new(lab.addr(), requests(), load * self.capacity_rps, end);
        spec.seed = seed as u64;
        spec.warmup = options.warmup;
        spec.drain = DRAIN;
        let begun = (Instant::now(), server.process.cpu_time()?);
        let (report, samples) = load::start(spec)?.wait_with_samples()?;
        let busy = server.process.cpu_time()?.saturating_sub(begun.1);
        let server_cores = busy.as_secs_f64() / begun.0.elapsed().as_secs_f64();
        let slots = match &lab {
            Lab::Headgate(rig) => rig.policy_stats()?.get("slots").copied(),
            Lab::Native { .. } => None,
        };
        let samples: Vec<&Sample> = samples
            .iter()
            .filter(|sample| sample.at >= options.warmup)
            .collect();
        let types = self.types.iter().zip(report.types.chunks(SIZES.len()));
        let types = types.enumerate().map(|(index, (kind, reports))| {
            let of_kind = samples.iter().filter(|sample| kind_of(sample) == index);
            let of_kind: Vec<&Sample> = of_kind.copied().collect();
            TypeMeasured::of(kind, &of_kind, reports)
        });
        let types: Vec<TypeMeasured> = types.collect();
        let seconds = measured.as_secs_f64();
        let tokens = samples.iter().filter_map(|sample| answer(sample));
        let tokens: u32 = tokens.map(|stream| stream.tokens).sum();
        Ok(Measured {
            goodput_rps: types.iter().map(|kind| kind.good).sum::<usize>() as f64 / seconds,
            tokens_per_s: f64::from(tokens) / seconds,
            late_p99_ms: report.lateness_ms.p99,
            server_cores,
            slots,
            types,
        })
    }
}

impl TypeMeasured {
    fn of(kind: &TypeReport, samples: &[&Sample], reports: &[load::TypeReport]) -> Self {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let good = |stream: Stream| {
            ms(stream.first) <= kind.ttft_ms && ms(stream.per_token()) <= kind.tpot_ms
        };
        let (ttft_ms, tpot_ms) = token_times(samples.iter().copied());
        let (mut sent_by_size, mut good_by_size) = ([0; SIZES.len()], [0; SIZES.len()]);
        for sample in samples {
            let size = sample.kind % SIZES.len();
            sent_by_size[size] += 1;
            good_by_size[size] += usize::from(answer(sample).is_some_and(good));
        }
        let mut refused_by = BTreeMap::new();
        for (reason, count) in reports.iter().flat_map(|report| &report.refused_by) {
            *refused_by.entry(reason.clone()).or_default() += count;
        }
        let refused = samples
            .iter()
            .filter(|sample| sample.ended == Ended::Refused);
        Self {
            name: kind.name,
            sent: samples.len(),
            answered: samples.iter().filter_map(|sample| answer(sample)).count(),
            good: good_by_size.iter().sum(),
            refused: refused.count(),
            sent_by_size,
            good_by_size,
            ttft_ms,
            tpot_ms,
            refused_by,
        }
    }
}

#[cfg(test)]
mod tests {
    use headgate_api::validate::check_file;

    use super::*;

    /// Checks that Headgate accepts the policy of a protection, if the protection has one.
    pub(super) fn assert_valid(protection: &Protection) {
        let Some(policy) = protection.policy() else {
            return;
        };
        let report = check_file(protection.name(), policy.to_string().as_bytes());
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        for document in report.documents {
            assert!(document.policy.is_ok(), "{document:?}");
        }
    }

    pub(super) fn sample(at_ms: u64, latency_ms: u64, ended: Ended) -> Sample {
        let ms = Duration::from_millis;
        Sample {
            kind: 0,
            at: ms(at_ms),
            late: Duration::ZERO,
            latency: ms(latency_ms),
            ended,
            service: Duration::ZERO,
            attempt: 1,
            stream: Some(Stream {
                first: ms(latency_ms / 2),
                last: ms(latency_ms),
                tokens: 11,
            }),
        }
    }

    #[test]
    fn capacity_counts_whole_answers_by_their_ends() {
        let second = Duration::from_secs(1);
        let samples = [
            sample(900, 99, Ended::Ok),
            sample(0, 1_000, Ended::Ok),
            sample(2_000, 900, Ended::Ok),
            sample(2_999, 1, Ended::Ok),
            sample(1_500, 10, Ended::Refused),
            sample(1_500, 10, Ended::Failed),
            Sample {
                stream: None,
                ..sample(1_500, 10, Ended::Ok)
            },
        ];
        assert_eq!(answers_per_second(&samples, second, second * 3), 1.0);
        assert_eq!(
            answers_per_second(&samples, Duration::ZERO, second * 4),
            1.0
        );
    }

    #[test]
    fn an_answer_is_good_inside_both_objectives() {
        let kind = TypeReport {
            name: "chat",
            alone_ttft_ms: 0.0,
            alone_ttft_p99_ms: 0.0,
            busy_ttft_ms: 0.0,
            busy_tpot_ms: 0.0,
            ttft_ms: 100.0,
            tpot_ms: 10.0,
        };
        // The first tokens of the three answers come after 100, 102 and 60 ms, and the others every
        // 10, 10.2 and 14 ms.
        let mut slow_tokens = sample(0, 200, Ended::Ok);
        slow_tokens.stream = slow_tokens.stream.map(|stream| Stream {
            first: Duration::from_millis(60),
            ..stream
        });
        let samples = [
            sample(0, 200, Ended::Ok),
            sample(0, 204, Ended::Ok),
            slow_tokens,
            sample(0, 1, Ended::Refused),
        ];
        let samples: Vec<&Sample> = samples.iter().collect();
        let measured = TypeMeasured::of(&kind, &samples, &[]);
        let counts = (
            measured.sent,
            measured.answered,
            measured.good,
            measured.refused,
        );
        assert_eq!(counts, (4, 3, 1, 1));
    }

    #[test]
    fn the_sizes_of_a_type_have_its_mean_and_fit_into_a_slot() {
        for index in 0..2 {
            let factor = |size: &(f64, f64)| [size.0, size.1][index];
            let mean = SIZES.iter().map(factor).sum::<f64>() / SIZES.len() as f64;
            assert!((mean - 1.0).abs() < 1e-9, "{mean}");
        }
        for kind in &MIX {
            for (prompt, output) in SIZES {
                // The tokenizer adds a begin token and a space of up to three bytes.
                let tokens = times_of(kind.prompt, prompt) + times_of(kind.output, output) + 4;
                assert!(tokens <= CONTEXT, "{}: {tokens}", kind.name);
            }
        }
    }
}
