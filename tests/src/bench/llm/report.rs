//! The results of `llm`, and their tables.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{MIX, SEARCH_LOAD, SIZES, UNLOADED};
use crate::bench::refusals;
use crate::bench::table::{Table, percent, times};
use crate::quantiles::Quantiles;

/// The results of a whole benchmark.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Answers of the mix per second with all slots busy.
    pub capacity_rps: f64,
    /// The types of request.
    pub types: Vec<TypeReport>,
    /// The results without a filter at a load that leaves slots free.
    pub unloaded: Measured,
    /// The ideal at each load.
    pub ideal: Vec<Ideal>,
    /// The rows, in the order of the table.
    pub rows: Vec<RowReport>,
    /// The runs.
    pub runs: Vec<Run>,
}

/// The measurements and objectives of one type of request.
#[derive(Debug, Clone, Serialize)]
pub struct TypeReport {
    /// Name.
    pub name: &'static str,
    /// Median TTFT of a request alone, ms.
    pub alone_ttft_ms: f64,
    /// 99th percentile of TTFT of a request alone, ms.
    pub alone_ttft_p99_ms: f64,
    /// 90th percentile of TTFT with all slots busy, ms.
    pub busy_ttft_ms: f64,
    /// 90th percentile of TPOT with all slots busy, ms.
    pub busy_tpot_ms: f64,
    /// Objective for TTFT, ms.
    pub ttft_ms: f64,
    /// Objective for TPOT, ms.
    pub tpot_ms: f64,
}

/// The largest possible goodput at a load.
#[derive(Debug, Clone, Serialize)]
pub struct Ideal {
    /// Offered load as a multiple of capacity.
    pub load: f64,
    /// Answers per second by type, in the mix's order.
    pub by_type: [f64; MIX.len()],
}

/// One protection.
#[derive(Debug, Clone, Serialize)]
pub struct RowReport {
    /// Name for `--only` and JSON.
    pub name: &'static str,
    /// A short description.
    pub title: &'static str,
    /// The settings that a search compared, with their goodput, requests/s. Empty without a search.
    pub searched: Vec<(String, f64)>,
    /// The setting of the runs.
    pub setting: String,
}

/// One run: a row at one load.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// Name of the row.
    pub row: &'static str,
    /// Offered load as a multiple of capacity.
    pub load: f64,
    /// Number of the round.
    pub round: usize,
    /// The result.
    #[serde(flatten)]
    pub result: Measured,
}

/// The results of the measured part of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// Answers inside both objectives per second.
    pub goodput_rps: f64,
    /// Tokens per second of all answers.
    pub tokens_per_s: f64,
    /// 99th percentile of the lateness of clients in sending, ms.
    pub late_p99_ms: f64,
    /// The part of its core that the server used. In overload, other programs used the rest of the
    /// core, or a protection left it idle.
    pub server_cores: f64,
    /// Headgate's slots at the end of the run.
    pub slots: Option<u64>,
    /// The results by type, in the mix's order.
    pub types: Vec<TypeMeasured>,
}

/// The results of one type in a [`Measured`].
#[derive(Debug, Clone, Serialize)]
pub struct TypeMeasured {
    /// Name.
    pub name: &'static str,
    /// The number of requests.
    pub sent: usize,
    /// The number of answers that were streamed to their end.
    pub answered: usize,
    /// The number of answers inside both objectives.
    pub good: usize,
    /// The number of refusals.
    pub refused: usize,
    /// The number of requests by size, in the order of the sizes.
    pub sent_by_size: [usize; SIZES.len()],
    /// The number of answers inside both objectives by size, in the order of the sizes.
    pub good_by_size: [usize; SIZES.len()],
    /// Time to the first token of the answers, ms.
    pub ttft_ms: Quantiles,
    /// Time per output token of the answers, ms.
    pub tpot_ms: Quantiles,
    /// The number of refusals by the reason that the client gets.
    pub refused_by: BTreeMap<String, u64>,
}

impl TypeMeasured {
    fn share(&self, count: usize) -> f64 {
        count as f64 / self.sent.max(1) as f64
    }
}

impl TypeReport {
    /// Returns a summary for a line of progress.
    pub(super) fn words(&self) -> String {
        format!(
            "{}: TTFT p50 {:.0} ms and p99 {:.0} ms alone, p90 {:.0} ms with busy slots, objective \
             {:.0} ms; TPOT p90 {:.1} ms, objective {:.1} ms",
            self.name,
            self.alone_ttft_ms,
            self.alone_ttft_p99_ms,
            self.busy_ttft_ms,
            self.ttft_ms,
            self.busy_tpot_ms,
            self.tpot_ms
        )
    }
}

impl Measured {
    /// Returns a summary for a line of progress.
    pub(super) fn words(&self) -> String {
        let types = self.types.iter().map(|kind| {
            format!(
                "{} {} good, {} refused, TTFT {:.0}/{:.0} ms",
                kind.name,
                percent(kind.share(kind.good)),
                percent(kind.share(kind.refused)),
                kind.ttft_ms.p50,
                kind.ttft_ms.p99
            )
        });
        let slots = self.slots.map(|slots| format!(", {slots} slots"));
        let mut refused = self.refusals();
        if !refused.is_empty() {
            refused = format!("; refused: {refused}");
        }
        format!(
            "goodput {:.1}/s ({}); {:.0} tokens/s, server {:.2} cores, late {:.1} ms{}{refused}",
            self.goodput_rps,
            types.collect::<Vec<_>>().join("; "),
            self.tokens_per_s,
            self.server_cores,
            self.late_p99_ms,
            slots.unwrap_or_default()
        )
    }

    /// Returns the refusals by type and reason as text, in the mix's order.
    fn refusals(&self) -> String {
        let types = self.types.iter();
        refusals::words(types.map(|kind| (kind.name, &kind.refused_by)))
    }
}

/// Returns one table for each load, with the refusals below the table. The tables show the run with
/// the median goodput of each row.
pub fn table(report: &Report) -> String {
    let mut text = format!("\nCapacity {:.1} requests/s.\n", report.capacity_rps);
    for kind in &report.types {
        text += &format!("  {}\n", kind.words());
    }
    text += &format!("  unloaded ({UNLOADED}×): {}\n", report.unloaded.words());
    for row in &report.rows {
        for (setting, goodput) in &row.searched {
            text += &format!(
                "  {}, {setting}: {goodput:.1}/s at {SEARCH_LOAD}×\n",
                row.title
            );
        }
    }
    let mut loads: Vec<f64> = report.runs.iter().map(|run| run.load).collect();
    loads.sort_by(f64::total_cmp);
    loads.dedup();
    for load in loads {
        text += &format!("\nLoad {load}× of capacity.\n{}", table_at(report, load));
    }
    text
}

fn table_at(report: &Report, load: f64) -> String {
    let mut refused = String::new();
    let mut table = Table::new(&[
        "",
        "goodput/s",
        "÷ capacity",
        "tokens/s",
        "cores",
        "slots",
        "type",
        "good",
        "refused",
        "TTFT p50",
        "p90",
        "p99, ms",
        "p99 ÷ unloaded",
        "÷ alone",
        "TPOT p50",
        "p90, ms",
    ]);
    for row in &report.rows {
        let of_row = report.runs.iter();
        let of_row = of_row.filter(|run| run.row == row.name && run.load == load);
        let mut runs: Vec<&Measured> = of_row.map(|run| &run.result).collect();
        runs.sort_by(|left, right| left.goodput_rps.total_cmp(&right.goodput_rps));
        let (Some(least), Some(most)) = (runs.first(), runs.last()) else {
            continue;
        };
        let median = runs[runs.len() / 2];
        let mut goodput = format!("{:.1}", median.goodput_rps);
        if runs.len() > 1 {
            goodput += &format!(" ({:.1}–{:.1})", least.goodput_rps, most.goodput_rps);
        }
        let mut of_run = vec![
            format!("{}, {}", row.title, row.setting),
            goodput,
            times(median.goodput_rps / report.capacity_rps),
            format!("{:.0}", median.tokens_per_s),
            format!("{:.2}", median.server_cores),
            median
                .slots
                .map_or("–".to_owned(), |slots| slots.to_string()),
        ];
        let words = median.refusals();
        if !words.is_empty() {
            refused += &format!("  {} {load}×: {words}\n", row.name);
        }
        let idle = report.types.iter().zip(&report.unloaded.types);
        for (kind, (alone, unloaded)) in median.types.iter().zip(idle) {
            let cell = |times: &Quantiles, ms: f64, digits: usize| match times.count {
                0 => "–".to_owned(),
                _ => format!("{ms:.digits$}"),
            };
            let (ttft, tpot) = (&kind.ttft_ms, &kind.tpot_ms);
            let slower = |than_ms: f64| match ttft.count {
                1.. if than_ms > 0.0 => times(ttft.p99 / than_ms),
                _ => "–".to_owned(),
            };
            let mut cells = of_run.clone();
            cells.extend([
                kind.name.to_owned(),
                percent(kind.share(kind.good)),
                percent(kind.share(kind.refused)),
                cell(ttft, ttft.p50, 0),
                cell(ttft, ttft.p90, 0),
                cell(ttft, ttft.p99, 0),
                slower(unloaded.ttft_ms.p99),
                slower(alone.alone_ttft_p99_ms),
                cell(tpot, tpot.p50, 1),
                cell(tpot, tpot.p90, 1),
            ]);
            table.row(cells);
            of_run.fill(String::new());
        }
    }
    for ideal in report.ideal.iter().filter(|ideal| ideal.load == load) {
        let goodput: f64 = ideal.by_type.iter().sum();
        let mut cells = vec![
            "ideal".to_owned(),
            format!("{goodput:.1}"),
            times(goodput / report.capacity_rps),
        ];
        cells.resize(6, "–".to_owned());
        for ((kind, answered), of_mix) in report.types.iter().zip(ideal.by_type).zip(&MIX) {
            let sent = of_mix.share * load * report.capacity_rps;
            cells.extend([kind.name.to_owned(), percent(answered / sent)]);
            cells.resize(16, "–".to_owned());
            table.row(cells);
            cells = vec![String::new(); 6];
        }
    }
    if !refused.is_empty() {
        refused.insert_str(0, "  Refused:\n");
    }
    format!("{table}{refused}")
}
