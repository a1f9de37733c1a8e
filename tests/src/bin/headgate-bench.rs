//! `scripts/bench`: Headgate's cost, and its benefit in overload.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use headgate_tests::bench::wild::experiments::{self, Experiment};
use headgate_tests::bench::{
    agreement, cpu, decision, llm, lock, memory, overload, scale, slack_order, throughput, wild,
    workflows,
};
use headgate_tests::mix;
use serde_json::{Map, Value, json};

/// Measures Headgate's cost and its benefit in overload, each number beside a baseline of the same
/// run.
#[derive(Debug, Parser)]
#[command(name = "scripts/bench")]
struct Args {
    /// Benchmarks to run. Without any, all except `wild` and `llm` run.
    benches: Vec<Bench>,
    /// Measured time of each run, s.
    #[arg(long)]
    seconds: Option<f64>,
    /// Only the variant of this name. May be given several times. In `llm` it is the name of a row.
    /// In `wild` it is the name of a row or of a candidate, or ROW=CANDIDATE,CANDIDATE for a row
    /// that searches only these candidates.
    #[arg(long)]
    only: Vec<String>,
    /// Offered loads of `overload` (0.9,1.2,1.5,2), `wild` (0.5,0.75,1,1.5,2,3) and `llm`
    /// (0.7,1.5,2), as multiples of capacity.
    #[arg(long, value_delimiter = ',')]
    loads: Vec<f64>,
    /// Worker threads of Envoy in `overload`, `slack-order`, `agreement` and `llm`.
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// Rounds over all variants in `cpu`, `throughput` and `workflows` (5), `wild` and `llm` (3).
    #[arg(long)]
    rounds: Option<usize>,
    /// Factor of the paper's service times and objectives in `agreement`.
    #[arg(long, default_value_t = 4.0)]
    scale: f64,
    /// Runs of the simulator in `agreement`, for their scatter.
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// Folder in which criterion leaves the figures of `cargo bench -p headgate-strategies`.
    #[arg(long, default_value = "target/criterion")]
    criterion: PathBuf,
    /// Policies in `scale`.
    #[arg(long, default_value_t = 1_000)]
    policies: usize,
    /// Simulated proxies in `scale`.
    #[arg(long, default_value_t = 1_000)]
    clients: usize,
    /// Edits in each part of `scale`: with a policy for each proxy, and with one policy for all.
    #[arg(long, default_value_t = 50)]
    edits: usize,
    /// Service of `wild`. May be given several times. Without it, all services are measured.
    #[arg(long)]
    service: Vec<WildService>,
    /// `wild` in minutes: one round of a short run at 1.5 times the capacity, without searches and
    /// changes. `llm` is shortened likewise, but with its searches.
    #[arg(long)]
    quick: bool,
    /// Compares the simulator's model of the server of `llm` with the server, and nothing else.
    #[arg(long)]
    model: bool,
    /// An experiment of `wild` in place of the services, or of `llm` in place of the mix. May be
    /// given several times. `--only` names its cases and its rows. The rows in `wild` are none,
    /// wasm-p, wasm, native-p and native. The rows in `llm` are none, and wasm or native with
    /// -time, -tokens or -workflows.
    #[arg(long)]
    experiment: Vec<NamedExperiment>,
    /// Values of P that `wild` searches for Headgate.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,6,8,12")]
    parallelism: Vec<usize>,
    /// Capacity of the services in `wild`, requests/s, in place of a ramp.
    #[arg(long)]
    capacity: Option<f64>,
    /// Seconds of load before each measured time of `wild` and `llm`, in which a protection adapts.
    /// Each run begins with a cold proxy.
    #[arg(long, default_value_t = 5)]
    warmup: u64,
    /// `wild` adds its runs to those in `--out`, with the capacities and the choices in these
    /// files.
    #[arg(long)]
    resume: bool,
    /// Folder of the table (wild.md), the picture (wild.svg) and the numbers (wild.json) of `wild`,
    /// and of the pictures of its experiments (hang.svg, …). A later run takes the services that it
    /// doesn't measure from these numbers.
    #[arg(long, default_value = "target/wild")]
    out: PathBuf,
    /// Writes all numbers to this file as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bench {
    /// Cost of a decision, in Envoy and natively.
    Decision,
    /// Envoy's CPU time per request, filter by filter.
    Cpu,
    /// The native filter's lock, between 1 and 32 threads.
    Lock,
    /// The largest number of requests per second of one Envoy worker.
    Throughput,
    /// Memory of Envoy, and the memory that each worker adds.
    Memory,
    /// Size of the filter's module.
    Size,
    /// Goodput under overload, beside Envoy's own protections.
    Overload,
    /// Starvation avoidance with the queue as a FIFO and in slack order.
    SlackOrder,
    /// The same policies in the simulator and in Envoy.
    Agreement,
    /// Many policies and many proxies on one operator.
    Scale,
    /// Cost of workflows for a hop between two sidecars, and the memory for each workflow.
    Workflows,
    /// Services that were not written for Headgate, under load from k6. Takes hours.
    Wild,
    /// Goodput in front of an LLM server, by the times of its tokens.
    Llm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WildService {
    /// An async Python server on SQLite.
    Sqlite,
    /// A forking Python server on PostgreSQL.
    Postgres,
    /// A CPU-bound server in Go.
    Cpu,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum NamedExperiment {
    /// In `wild`: one route, one endpoint or all of the backend is broken.
    Hang,
    /// In `wild`: a new proxy process, below and above capacity.
    Cold,
    /// In `wild`: three times the capacity for 5 s.
    Spike,
    /// In `wild`: a retry storm.
    Retries,
    /// In `llm`: two tenants, one with prompts a hundred times as long as the other's.
    Tenants,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let benches = if args.benches.is_empty() {
        let all = Bench::value_variants().iter().copied();
        all.filter(|bench| !matches!(bench, Bench::Wild | Bench::Llm))
            .collect()
    } else {
        args.benches.clone()
    };
    let mut results = Map::new();
    for bench in benches {
        let (name, value) = match bench {
            Bench::Decision => ("decision", decision(&args)?),
            Bench::Cpu => ("cpu", cpu(&args)?),
            Bench::Lock => ("lock", lock(&args)?),
            Bench::Throughput => ("throughput", throughput(&args)?),
            Bench::Memory => ("memory", memory()?),
            Bench::Size => ("size", size()?),
            Bench::Overload => ("overload", overload(&args)?),
            Bench::SlackOrder => ("slack_order", slack_order(&args)?),
            Bench::Agreement => ("agreement", agreement(&args)?),
            Bench::Scale => ("scale", scale(&args)?),
            Bench::Workflows => ("workflows", workflows(&args)?),
            Bench::Wild => ("wild", wild(&args)?),
            Bench::Llm => ("llm", llm(&args)?),
        };
        results.insert(name.to_owned(), value);
    }
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&Value::Object(results))?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

fn seconds(args: &Args, default: f64) -> Duration {
    Duration::from_secs_f64(args.seconds.unwrap_or(default))
}

fn loads(args: &Args, default: &[f64]) -> Vec<f64> {
    if args.loads.is_empty() {
        default.to_vec()
    } else {
        args.loads.clone()
    }
}

fn rounds(args: &Args) -> usize {
    args.rounds.unwrap_or(5)
}

fn say(what: &str) {
    eprintln!("==> {what}");
}

fn decision(args: &Args) -> Result<Value> {
    say("decision: in the guest");
    let mut guest = decision::in_guest(&[0.5, 1.5], seconds(args, 12.0), args.workers)?;
    guest.push(decision::in_saturated_guest(seconds(args, 12.0))?);
    println!("\n{}", decision::guest_table(&guest));
    let native = decision::native(&args.criterion)?;
    if native.is_empty() {
        println!(
            "  No native figures in {}; run cargo bench -p headgate-strategies.",
            args.criterion.display()
        );
    } else {
        println!("{}", decision::native_table(&native));
    }
    Ok(json!({"guest": guest, "native": native}))
}

fn cpu(args: &Args) -> Result<Value> {
    let options = cpu::Options {
        rate: 4_000.0,
        measured: seconds(args, 4.0),
        rounds: rounds(args),
        only: args.only.clone(),
    };
    let rows = cpu::run(&options, |what| say(&format!("cpu: {what}")))?;
    println!(
        "\nOne worker, {} requests/s; medians over {} rounds.\n{}",
        options.rate,
        options.rounds,
        cpu::table(&rows)
    );
    Ok(json!(rows))
}

fn lock(args: &Args) -> Result<Value> {
    say("lock");
    let rows = lock::run(&[1, 2, 4, 8, 16, 32], seconds(args, 1.0))?;
    println!("\n{}", lock::table(&rows));
    Ok(json!(rows))
}

fn throughput(args: &Args) -> Result<Value> {
    let rows = throughput::run(seconds(args, 4.0), rounds(args), |what| {
        say(&format!("throughput: {what}"));
    })?;
    println!("\n{}", throughput::table(&rows));
    Ok(json!(rows))
}

fn memory() -> Result<Value> {
    let rows = memory::run(|what| say(&format!("memory: {what}")))?;
    println!("\n{}", memory::table(&rows));
    Ok(json!(rows))
}

fn size() -> Result<Value> {
    let (headgate, empty) = memory::module_sizes()?;
    println!(
        "\n  module: {headgate} bytes, {:.1}× an empty Wasm filter ({empty} bytes)",
        headgate as f64 / empty as f64
    );
    Ok(json!({"headgate_bytes": headgate, "empty_bytes": empty}))
}

fn overload(args: &Args) -> Result<Value> {
    let mut rows = Vec::new();
    for load in loads(args, &[0.9, 1.2, 1.5, 2.0]) {
        let options = overload::Options {
            load,
            measured: seconds(args, 15.0),
            warmup: Duration::from_secs(6),
            only: args.only.clone(),
            workers: args.workers,
            parallelism: 20,
            scale: 4.0,
        };
        let of_load = overload::run(&options, |what| say(&format!("overload: {what}")))?;
        println!(
            "{}",
            overload::table(&of_load, &mix::bouncer(options.scale), load)
        );
        rows.extend(of_load);
    }
    Ok(json!(rows))
}

fn slack_order(args: &Args) -> Result<Value> {
    let options = slack_order::Options {
        load: 1.5,
        measured: seconds(args, 30.0),
        warmup: Duration::from_secs(6),
        only: args.only.clone(),
        workers: args.workers,
    };
    let rows = slack_order::run(&options, |what| say(&format!("slack-order: {what}")))?;
    println!(
        "{}",
        slack_order::table(&rows, &slack_order::mix(), options.load)
    );
    Ok(json!(rows))
}

fn agreement(args: &Args) -> Result<Value> {
    let options = agreement::Options {
        loads: vec![1.2, 1.5],
        measured: seconds(args, 120.0),
        warmup: Duration::from_secs(6),
        only: args.only.clone(),
        workers: args.workers,
        scale: args.scale,
        seeds: args.seeds,
    };
    let rows = agreement::run(&options, |what| say(&format!("agreement: {what}")))?;
    println!("\n{}", agreement::table(&rows));
    println!("  {}", agreement::verdict(&rows));
    Ok(json!(rows))
}

fn workflows(args: &Args) -> Result<Value> {
    let options = workflows::Options {
        measured: seconds(args, 5.0),
        rounds: rounds(args),
    };
    let report = workflows::run(&options, |what| say(&format!("workflows: {what}")))?;
    println!(
        "\nOne worker in each sidecar; medians over {} rounds.\n{}\n{}",
        options.rounds,
        workflows::hop_table(&report),
        workflows::memory_table(&report)
    );
    Ok(json!(report))
}

fn experiments(args: &Args) -> Result<Value> {
    let write = writer(args)?;
    let options = experiments::Options {
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }),
        quick: args.quick,
        only: args.only.clone(),
        workers: args.workers,
    };
    let named = args.experiment.iter().map(|experiment| match experiment {
        NamedExperiment::Hang => Ok(("hang", Experiment::Hang)),
        NamedExperiment::Cold => Ok(("cold", Experiment::Cold)),
        NamedExperiment::Spike => Ok(("spike", Experiment::Spike)),
        NamedExperiment::Retries => Ok(("retries", Experiment::Retries)),
        NamedExperiment::Tenants => bail!("wild has no --experiment tenants; llm has it"),
    });
    let mut all = Map::new();
    for (name, experiment) in named.collect::<Result<Vec<_>>>()? {
        let reports =
            experiments::run(experiment, &options, |what| say(&format!("{name}: {what}")))?;
        for report in &reports {
            println!("{}", experiments::table(report));
        }
        write(&format!("{name}.svg"), experiments::svg(&reports))?;
        all.insert(name.to_owned(), json!(reports));
    }
    Ok(Value::Object(all))
}

/// Makes the folder `--out`, and returns a function that writes a file there.
fn writer(args: &Args) -> Result<impl Fn(&str, String) -> Result<()>> {
    std::fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot make {}", args.out.display()))?;
    Ok(move |name: &str, text: String| {
        let file = args.out.join(name);
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    })
}

fn wild(args: &Args) -> Result<Value> {
    if !args.experiment.is_empty() {
        return experiments(args);
    }
    let services = args.service.iter().map(|service| match service {
        WildService::Sqlite => wild::Service::Sqlite,
        WildService::Postgres => wild::Service::Postgres,
        WildService::Cpu => wild::Service::Cpu,
    });
    let mut options = wild::Options {
        services: services.collect(),
        loads: loads(args, &[0.5, 0.75, 1.0, 1.5, 2.0, 3.0]),
        measured: seconds(args, 10.0),
        warmup: Duration::from_secs(args.warmup),
        rounds: args.rounds.unwrap_or(3),
        only: args.only.clone(),
        parallelism: args.parallelism.clone(),
        changes: !args.quick,
        capacity_rps: args.capacity,
        resume: args.resume,
    };
    if options.services.is_empty() {
        options.services = wild::Service::ALL.to_vec();
    }
    if args.quick {
        options.loads = loads(args, &[1.5]);
        options.rounds = args.rounds.unwrap_or(1);
        if options.only.is_empty() {
            options.only = wild::QUICK.map(str::to_owned).to_vec();
        }
    }
    let write = writer(args)?;
    // Saving after each round lets hours of measurements survive an interruption.
    let save = |reports: &[wild::ServiceReport]| {
        write("wild.json", serde_json::to_string_pretty(reports)?)?;
        write("wild.md", wild::markdown(reports))?;
        write("wild.svg", wild::svg(reports))
    };
    let file = args.out.join("wild.json");
    let before = match std::fs::read_to_string(&file) {
        Ok(text) => serde_json::from_str(&text)
            .with_context(|| format!("{} is not of this version", file.display()))?,
        Err(_) => Vec::new(),
    };
    let progress = |what: &str| say(&format!("wild: {what}"));
    let reports = wild::run(&options, before, progress, save)?;
    save(&reports)?;
    println!("\n{}", wild::markdown(&reports));
    Ok(json!(reports))
}

fn llm(args: &Args) -> Result<Value> {
    let short = |long: f64, quick: f64| if args.quick { quick } else { long };
    let options = llm::Options {
        loads: loads(args, if args.quick { &[1.5] } else { &[0.7, 1.5, 2.0] }),
        measured: seconds(args, short(20.0, 8.0)),
        warmup: Duration::from_secs(args.warmup),
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }),
        only: args.only.clone(),
        workers: args.workers,
    };
    if args.model {
        let fit = llm::fit(&options)?;
        println!("{}", fit.table());
        return Ok(json!(fit));
    }
    if !args.experiment.is_empty() {
        return tenants(args, options);
    }
    let report = llm::run(&options, |what| say(&format!("llm: {what}")))?;
    println!("{}", llm::table(&report));
    Ok(json!(report))
}

fn tenants(args: &Args, options: llm::Options) -> Result<Value> {
    if args
        .experiment
        .iter()
        .any(|named| *named != NamedExperiment::Tenants)
    {
        bail!("the only --experiment of llm is tenants");
    }
    // Only few of the long prompts are answered in a second, so a run must be long.
    let measured = seconds(args, if args.quick { 20.0 } else { 60.0 });
    let options = llm::Options {
        measured,
        ..options
    };
    let report = llm::tenants(&options, |what| say(&format!("tenants: {what}")))?;
    println!("{}", report.table());
    Ok(json!(report))
}

/// Measures all sources, or the one that `--only` names: `folder` or `kubernetes`.
fn scale(args: &Args) -> Result<Value> {
    let options = scale::Options {
        policies: args.policies,
        clients: args.clients,
        edits: args.edits,
        quiet: seconds(args, 10.0),
    };
    let mut rows = Vec::new();
    for (name, source) in [
        ("folder", scale::Source::Folder),
        ("kubernetes", scale::Source::Kubernetes),
    ] {
        if args.only.is_empty() || args.only.iter().any(|only| only == name) {
            rows.extend(scale::run(source, &options, |what| {
                say(&format!("scale: {what}"));
            })?);
        }
    }
    println!(
        "\n{} policies, {} proxies, {} edits.\n{}",
        options.policies,
        options.clients,
        options.edits,
        scale::table(&rows)
    );
    Ok(json!(rows))
}
