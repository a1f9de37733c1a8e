//! Memory of an Envoy with Headgate, and what each further worker thread adds.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::cpu::without_and_with_headgate;
use super::lab::{Lab, Protection};
use super::table::Table;
use crate::backend::{BackendConfig, ServiceType};
use crate::load::{self, LoadSpec};
use crate::{headgate, mix};

const FEW: u32 = 1;
const MANY: u32 = 4;
const MIB: f64 = 1_048_576.0;

/// The results of one variant.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Short name.
    pub variant: &'static str,
    /// Resident memory with one worker after some load, MiB.
    pub one_worker_mib: f64,
    /// Memory that each further worker adds, MiB.
    pub per_worker_mib: f64,
}

/// Measures plain Envoy, the empty Wasm filter, and Headgate in Wasm and natively.
///
/// # Errors
/// If a system doesn't start.
pub fn run(mut progress: impl FnMut(&str)) -> Result<Vec<Row>> {
    let variants = without_and_with_headgate(64)?;
    let mut rows = Vec::new();
    for variant in &variants {
        progress(variant.title());
        let (few, many) = (resident_mib(variant, FEW)?, resident_mib(variant, MANY)?);
        rows.push(Row {
            variant: variant.name(),
            one_worker_mib: few,
            per_worker_mib: (many - few) / f64::from(MANY - FEW),
        });
    }
    Ok(rows)
}

fn resident_mib(variant: &Protection, workers: u32) -> Result<f64> {
    let types = vec![ServiceType::constant("/", Duration::from_micros(200))];
    let lab = Lab::start(variant, BackendConfig::new(64, types), workers)?;
    load::run(LoadSpec::for_mix(
        lab.addr(),
        &mix::bouncer(1.0),
        1_000.0,
        Duration::from_secs(3),
    ))?;
    Ok(lab.envoy().resident_bytes()? as f64 / MIB)
}

/// Returns the rows as a table.
pub fn table(rows: &[Row]) -> Table {
    let baseline = rows.first();
    let mut table = Table::new(&[
        "memory (RSS)",
        "1 worker, MiB",
        "over no filter",
        "each further worker, MiB",
        "over no filter",
    ]);
    for row in rows {
        let (one, per) = baseline.map_or((0.0, 0.0), |b| (b.one_worker_mib, b.per_worker_mib));
        table.row([
            row.variant.to_owned(),
            format!("{:.1}", row.one_worker_mib),
            format!("{:+.1}", row.one_worker_mib - one),
            format!("{:.1}", row.per_worker_mib),
            format!("{:+.1}", row.per_worker_mib - per),
        ]);
    }
    table
}

/// Returns the sizes of Headgate's module and of the empty module, bytes.
///
/// # Errors
/// If a module isn't built.
pub fn module_sizes() -> Result<(u64, u64)> {
    let size = |path: &Path| {
        Ok::<_, anyhow::Error>(
            std::fs::metadata(path)
                .with_context(|| path.display().to_string())?
                .len(),
        )
    };
    Ok((
        size(&headgate::module_path())?,
        size(&super::cpu::variant_module("empty.wasm")?)?,
    ))
}
