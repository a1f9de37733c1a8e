//! `scripts/bench`: what Headgate costs, and what it is worth in overload.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use headgate_tests::bench::overload;
use headgate_tests::mix;
use serde_json::{Map, Value, json};

/// Measures what Headgate costs and what it is worth, each number beside a baseline of the same run.
#[derive(Debug, Parser)]
#[command(name = "scripts/bench")]
struct Args {
    /// What to measure; everything if none is given.
    benches: Vec<Bench>,
    /// Measured time of each run, s.
    #[arg(long)]
    seconds: Option<f64>,
    /// Only the variant of this name; may be given several times.
    #[arg(long)]
    only: Vec<String>,
    /// Offered loads of `overload`, as multiples of capacity.
    #[arg(long, value_delimiter = ',', default_value = "0.9,1.2,1.5,2")]
    loads: Vec<f64>,
    /// Worker threads of Envoy in `overload`.
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// Writes all numbers to this file as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bench {
    /// Goodput under overload, beside Envoy's own protections.
    Overload,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let benches = if args.benches.is_empty() { Bench::value_variants().to_vec() } else { args.benches.clone() };
    let mut results = Map::new();
    for bench in benches {
        let (name, value) = match bench {
            Bench::Overload => ("overload", overload(&args)?),
        };
        results.insert(name.to_owned(), value);
    }
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&Value::Object(results))?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

fn overload(args: &Args) -> Result<Value> {
    let options = overload::Options {
        loads: args.loads.clone(),
        measured: Duration::from_secs_f64(args.seconds.unwrap_or(15.0)),
        warmup: Duration::from_secs(6),
        only: args.only.clone(),
        workers: args.workers,
        parallelism: 20,
        scale: 4.0,
    };
    let rows = overload::run(&options, |what| eprintln!("==> {what}"))?;
    let mix = mix::bouncer(options.scale);
    println!("{}", overload::tables(&rows, &mix, str::to_owned));
    Ok(json!(rows))
}
