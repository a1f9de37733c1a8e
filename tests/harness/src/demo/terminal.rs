//! The demo on a terminal: a bar during the run, and tables and claims after it.

use std::fmt::Write as _;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::chart::say_ms;
use super::result::{DemoResult, Phase};
use super::run::Progress;
use crate::table::{Table, percent};

/// Progress on standard error. It is a bar if standard error is a terminal, otherwise a line for
/// each step.
#[derive(Debug, Default)]
pub struct Terminal {
    bar: Option<ProgressBar>,
}

impl Progress for Terminal {
    fn begin(&mut self, what: &str, expected: Duration) {
        if !stderr().is_terminal() {
            eprintln!("==> {what} ({} s)", expected.as_secs());
            return;
        }
        eprintln!("==> {what}");
        let bar = ProgressBar::new(u64::try_from(expected.as_millis()).unwrap_or(u64::MAX));
        if let Ok(style) = ProgressStyle::with_template("    {bar:30.cyan/dim} {msg}") {
            bar.set_style(style);
        }
        self.bar = Some(bar);
    }

    fn tick(&mut self, elapsed: Duration, seen: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
            bar.set_message(seen.to_owned());
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.abandon();
        }
    }
}

/// Returns the result as text.
pub fn summary(result: &DemoResult) -> String {
    let setup = &result.setup;
    let mut text = format!(
        "\n{:.0} requests/s offered = {}× the capacity of a backend that serves {} at once; Envoy \
         {} with {} worker threads\n",
        setup.overload * setup.capacity_rps,
        setup.overload,
        setup.parallelism,
        setup.envoy,
        setup.envoy_workers
    );
    for (title, phase) in [
        ("Envoy alone", &result.without),
        ("Envoy with Headgate", &result.with),
    ] {
        let _ = write!(text, "\n{title}\n{}", table(result, phase));
    }
    let estimates = estimates(result);
    if !estimates.is_empty() {
        let _ = write!(
            text,
            "\nThe filter's own view, last 5 s before the edits: estimated → measured\n{estimates}"
        );
    }
    text.push_str("\nLive edits of the policy file, under load\n");
    for edit in &result.edits {
        let in_force = edit
            .in_force_ms
            .map_or_else(|| "not seen".to_owned(), say_ms);
        let _ = writeln!(
            text,
            "  {}: acknowledged after {}, shows in answers after {in_force}",
            edit.what,
            say_ms(edit.acknowledged_ms)
        );
    }
    for (title, phase) in [
        ("Envoy alone", &result.without),
        ("Envoy with Headgate", &result.with),
    ] {
        for discarded in &phase.discarded {
            let _ = writeln!(text, "\n{title}: a run was discarded, because {discarded}");
        }
    }
    text.push_str("\nSeen\n");
    for claim in &result.claims {
        let mark = if claim.seen { '✓' } else { '✗' };
        let _ = writeln!(text, "  {mark} {}\n      {}", claim.text, claim.evidence);
    }
    text
}

fn table(result: &DemoResult, phase: &Phase) -> String {
    let setup = &result.setup;
    let seconds = setup.counted_s.1 - setup.counted_s.0;
    let mut table = Table::new(&[
        "type",
        "offered/s",
        "accepted",
        "refused",
        "p50",
        "",
        "p90",
        "",
        "inside p90/s",
    ]);
    for (kind, setup) in phase.types.iter().zip(&setup.types) {
        let totals = &kind.totals;
        table.row([
            setup.name.clone(),
            format!("{:.0}", totals.offered as f64 / seconds),
            percent(totals.acceptance()),
            percent(1.0 - totals.acceptance()),
            totals.p50_ms.map_or_else(|| "–".to_owned(), say_ms),
            against(totals.p50_ms, setup.slo_p50_ms),
            totals.p90_ms.map_or_else(|| "–".to_owned(), say_ms),
            against(totals.p90_ms, setup.slo_p90_ms),
            format!("{:.0}", totals.good as f64 / seconds),
        ]);
    }
    format!(
        "{table}  goodput {:.0}/s = {:.2}× of capacity; at most {} in the backend; its slots {} \
         busy\n",
        phase.goodput_rps,
        phase.goodput_rps / setup.capacity_rps,
        phase.max_in_flight,
        percent(phase.utilization)
    )
}

fn against(measured: Option<f64>, objective: f64) -> String {
    let mark = match measured {
        Some(ms) if ms <= objective => "✓",
        Some(_) => "✗",
        None => " ",
    };
    format!("{mark} ≤ {}", say_ms(objective))
}

fn estimates(result: &DemoResult) -> String {
    let mut lines = String::new();
    for (kind, setup) in result.with.types.iter().zip(&result.setup.types) {
        let percentiles: Vec<String> = kind
            .filter
            .iter()
            .map(|(name, p)| {
                format!(
                    "{name} {} → {}",
                    say_ms(p.estimated_ms),
                    say_ms(p.measured_ms)
                )
            })
            .collect();
        if !percentiles.is_empty() {
            let _ = writeln!(lines, "  {:<12} {}", setup.name, percentiles.join("   "));
        }
    }
    lines
}
