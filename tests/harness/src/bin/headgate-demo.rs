//! `scripts/demo`: Headgate in a real Envoy.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use headgate_harness::demo::run::{self, Options};
use headgate_harness::demo::terminal::{self, Terminal};
use headgate_harness::demo::{picture, report, value_cut};
use headgate_harness::load::TooBusy;

/// `EX_TEMPFAIL` of sysexits.h, a temporary failure. A later run may succeed.
const TOO_BUSY: u8 = 75;

const EXIT_STATUS: &str = "\
Exit status:
  0   everything it claims was seen
  1   something it claims was not seen, or a part did not start
  2   wrong arguments
  75  the machine was too busy to measure: no run was undisturbed";

/// An overloaded backend behind a real Envoy, without Headgate and with it, and then live edits of
/// the policy.
///
/// A run in which the load generator or the backend was late, because other programs took the
/// processors, is repeated.
#[derive(Debug, Parser)]
#[command(name = "scripts/demo", after_help = EXIT_STATUS)]
struct Args {
    /// Length of the overload that is compared, s.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(5..=600))]
    seconds: u64,
    /// Offered load as a multiple of the backend's capacity.
    #[arg(long, default_value_t = 1.5)]
    load: f64,
    /// Worker threads of Envoy.
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// Path of the HTML report.
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    report: PathBuf,
    /// Writes all numbers to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes the result as one SVG picture to this file.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Writes the value cut of the proxy at the end of the overload as SVG to this file.
    #[arg(long, value_name = "FILE")]
    value_cut: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let options = Options {
        overload: Duration::from_secs(args.seconds),
        load: args.load,
        workers: args.workers,
        parallelism: 20,
        scale: 4.0,
    };
    let result = match run::run(&options, &mut Terminal::default()) {
        Err(error) if error.is::<TooBusy>() => {
            eprintln!("{error:#}\nNothing is shown to be wrong. Try again when less is running.");
            return Ok(ExitCode::from(TOO_BUSY));
        }
        other => other?,
    };
    println!("{}", terminal::summary(&result));
    write(&args.report, &report::html(&result))?;
    if let Some(file) = &args.json {
        write(file, &serde_json::to_string_pretty(&result)?)?;
    }
    if let Some(file) = &args.picture {
        write(file, &picture::svg(&result))?;
    }
    if let (Some(file), Some(cut)) = (&args.value_cut, value_cut::svg(&result)) {
        write(file, &cut)?;
    }
    println!("Report: {}", args.report.display());
    Ok(if result.holds() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
