//! The service of the test mesh as a program. It reads one configuration and serves until it is
//! killed.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use headgate_tests::mesh::service;

/// Any service of a mesh. A request's path selects its computation and its calls.
#[derive(Debug, Parser)]
struct Args {
    /// The file of the service's configuration, JSON or YAML.
    config: PathBuf,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let shown = args.config.display().to_string();
    let text = std::fs::read_to_string(&args.config).with_context(|| shown.clone())?;
    let config = serde_saphyr::from_str(&text).with_context(|| shown.clone())?;
    service::run(config, |listening, control| {
        println!("listening={listening} control={control}");
    })
    .with_context(|| shown.clone())
}
