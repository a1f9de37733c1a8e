//! The test backend as a program: P workers behind an unbounded FIFO queue, with lognormal service
//! times by path.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use headgate_harness::backend::{Backend, BackendConfig, OnDisconnect, ServiceType};
use headgate_harness::mix;

/// A backend that serves a fixed number of requests at a time, and reports the number of requests
/// in it.
#[derive(Debug, Parser)]
struct Args {
    /// Requests served at once.
    #[arg(long, default_value_t = 20)]
    workers: usize,
    /// PREFIX=MEAN/MEDIAN in ms, such as /q/slow=20.05/12.51. May be given several times. Without
    /// it, the four types of the Bouncer paper are served.
    #[arg(long = "type", value_parser = parse_type)]
    types: Vec<ServiceType>,
    /// Multiplies all service times.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Seed of the service times.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Address for requests.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Address for /__headgate/stats and the other control requests.
    #[arg(long, default_value = "127.0.0.1:0")]
    control: SocketAddr,
    /// Finish the work of clients that have left, instead of cancelling it.
    #[arg(long)]
    finish_on_disconnect: bool,
    /// Add x-backend-service-us and x-backend-wait-us to responses.
    #[arg(long)]
    report_service: bool,
}

fn parse_type(text: &str) -> Result<ServiceType, String> {
    let wrong = || format!("{text:?}: give PREFIX=MEAN/MEDIAN in ms, such as /q/slow=20.05/12.51");
    let (prefix, times) = text.rsplit_once('=').ok_or_else(wrong)?;
    let (mean, median) = times.split_once('/').unwrap_or((times, times));
    let time = |ms: &str| {
        let ms = ms
            .parse::<f64>()
            .ok()
            .filter(|ms| ms.is_finite() && *ms >= 0.0)
            .ok_or_else(wrong)?;
        Ok::<_, String>(Duration::from_secs_f64(ms / 1_000.0))
    };
    Ok(ServiceType {
        prefix: prefix.to_owned(),
        mean: time(mean)?,
        median: time(median)?,
    })
}

fn main() -> Result<()> {
    let args = Args::parse();
    let types = if args.types.is_empty() {
        mix::bouncer(1.0).iter().map(Into::into).collect()
    } else {
        args.types
    };
    let mut config = BackendConfig::new(args.workers, types);
    config.scale = args.scale;
    config.seed = args.seed;
    config.listen = args.listen;
    config.control = args.control;
    config.report_service = args.report_service;
    if args.finish_on_disconnect {
        config.on_disconnect = OnDisconnect::Finish;
    }
    let backend = Backend::start(&config)?;
    println!(
        "listening={} control={} workers={}",
        backend.addr(),
        backend.control_addr(),
        args.workers
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime
        .block_on(tokio::signal::ctrl_c())
        .context("cannot wait for Ctrl-C")?;
    backend.stop();
    Ok(())
}
