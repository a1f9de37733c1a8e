//! The open-loop load generator as a program. It prints its report as JSON.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use headgate_harness::load::{self, LoadSpec, Protocol};
use headgate_harness::mix;

/// Sends the four query types of the Bouncer paper at a Poisson rate, or any load given as JSON.
#[derive(Debug, Parser)]
struct Args {
    /// Address to send requests to, HOST:PORT.
    #[arg(long, required_unless_present = "spec", value_parser = resolve)]
    target: Option<SocketAddr>,
    /// Arrivals per second.
    #[arg(long, default_value_t = 500.0)]
    rate: f64,
    /// Duration, s.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Warm-up time that totals leave out, s from the start.
    #[arg(long, default_value_t = 0.0)]
    warmup: f64,
    /// Multiplies the paper's objectives. Must equal the scale of the backend's service times.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Seed of the schedule.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Send over HTTP/2.
    #[arg(long)]
    http2: bool,
    /// A whole load as a JSON file, instead of the options above.
    #[arg(long)]
    spec: Option<PathBuf>,
}

/// Returns the first address of a name.
fn resolve(target: &str) -> Result<SocketAddr> {
    let mut addresses = target.to_socket_addrs()?;
    addresses.next().context("the name has no address")
}

fn main() -> Result<()> {
    let args = Args::parse();
    let report = load::run(spec(&args)?)?;
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}

fn spec(args: &Args) -> Result<LoadSpec> {
    if let Some(path) = &args.spec {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        return serde_json::from_str(&text).with_context(|| path.display().to_string());
    }
    let target = args
        .target
        .context("--target: give an address such as 127.0.0.1:10000")?;
    let seconds = |value: f64, name: &str| {
        Duration::try_from_secs_f64(value)
            .with_context(|| format!("--{name}: {value}; give seconds"))
    };
    let duration = seconds(args.seconds, "seconds")?;
    let mut spec = LoadSpec::for_mix(target, &mix::bouncer(args.scale), args.rate, duration);
    spec.seed = args.seed;
    spec.warmup = seconds(args.warmup, "warmup")?;
    if args.http2 {
        spec.protocol = Protocol::Http2;
        spec.connections = 8;
    }
    Ok(spec)
}
